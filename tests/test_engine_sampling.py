"""A sampled token depends on the seed, its stream, its position and its logits, and on nothing else."""

import numpy as np
import torch

from engine.sampling import sample, uniform_draws

LOGITS = torch.randn(12, 50, generator=torch.Generator().manual_seed(0)) * 2
STREAMS, POSITIONS = np.arange(12) * 1000, np.arange(12) % 5
TEMPERATURE = np.where(np.arange(12) % 3 == 0, 0.0, 0.8)


def test_temperature_zero_takes_the_best_token_and_the_margin_tells_how_clearly():
    logits = torch.tensor([[0.0, 3.0, 2.5, 1.0], [4.0, 1.0, 4.0, 0.0]])
    result = sample(logits, np.zeros(2), seed=0, stream_ids=np.arange(2), positions=np.arange(2))
    assert result.token_ids.tolist() == [1, 0]
    assert result.margins.tolist() == [0.5, 0.0]


def test_company_and_order_in_the_batch_change_nothing():
    together = sample(LOGITS, TEMPERATURE, 1, STREAMS, POSITIONS).token_ids
    backwards = np.arange(12)[::-1].copy()
    reordered = sample(LOGITS[backwards], TEMPERATURE[backwards], 1, STREAMS[backwards], POSITIONS[backwards])
    assert torch.equal(reordered.token_ids.flip(0), together)
    for row in range(12):
        only = slice(row, row + 1)
        alone = sample(LOGITS[only], TEMPERATURE[only], 1, STREAMS[only], POSITIONS[only])
        assert alone.token_ids[0] == together[row]


def test_seed_stream_and_position_each_matter():
    base = uniform_draws(1, STREAMS, POSITIONS)
    assert not np.isin(uniform_draws(2, STREAMS, POSITIONS), base).any()
    assert not np.isin(uniform_draws(1, STREAMS + 1, POSITIONS), base).any()
    assert not np.isin(uniform_draws(1, STREAMS, POSITIONS + 100), base).any()


def test_draws_follow_the_softmax_at_the_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf])
    num_draws = 20_000
    result = sample(
        logits.expand(num_draws, 4), np.full(num_draws, 0.5), 9, np.arange(num_draws), np.zeros(num_draws, np.int64)
    )
    shares = torch.bincount(result.token_ids, minlength=4) / num_draws
    assert (shares - torch.softmax(logits / 0.5, dim=0)).abs().max() < 0.01
    assert shares[3] == 0


def test_uniform_draws_fill_the_unit_interval_evenly():
    draws = uniform_draws(0, np.repeat(np.arange(100), 100), np.tile(np.arange(100), 100))
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 45  # chi-squared, 19 degrees of freedom: p of about 0.001
    assert draws.min() >= 0
    assert draws.max() < 1
