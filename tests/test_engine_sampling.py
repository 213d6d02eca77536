"""A sampled token depends on the seed, its stream, its position and its logits, and on nothing else."""

import numpy as np
import pytest
import torch

from engine.sampling import best, most_likely, sample, uniform_draws

LOGITS = torch.randn(12, 50, generator=torch.Generator().manual_seed(0)) * 2
STREAMS, POSITIONS = np.arange(12) * 1000, np.arange(12) % 5


def drawn(logits, temperature, seed, streams, positions, *rest):
    return sample(logits, temperature, torch.from_numpy(uniform_draws(seed, streams, positions)), *rest)


def test_temperature_zero_takes_the_best_token_and_the_margin_tells_how_clearly():
    logits = torch.tensor([[0.0, 3.0, 2.5, 1.0], [4.0, 1.0, 4.0, 0.0]])
    result = drawn(logits, 0.0, 0, np.arange(2), np.arange(2))
    assert result.token_ids.tolist() == [1, 0]
    assert result.margins.tolist() == [0.5, 0.0]


def test_company_and_order_in_the_batch_change_nothing():
    together = drawn(LOGITS, 0.8, 1, STREAMS, POSITIONS).token_ids
    backwards = np.arange(12)[::-1].copy()
    reordered = drawn(LOGITS[backwards], 0.8, 1, STREAMS[backwards], POSITIONS[backwards])
    assert torch.equal(reordered.token_ids.flip(0), together)
    for row in range(12):
        only = slice(row, row + 1)
        alone = drawn(LOGITS[only], 0.8, 1, STREAMS[only], POSITIONS[only])
        assert alone.token_ids[0] == together[row]


def test_seed_stream_and_position_each_matter():
    base = uniform_draws(1, STREAMS, POSITIONS)
    assert not np.isin(uniform_draws(2, STREAMS, POSITIONS), base).any()
    assert not np.isin(uniform_draws(1, STREAMS + 1, POSITIONS), base).any()
    assert not np.isin(uniform_draws(1, STREAMS, POSITIONS + 100), base).any()


def test_draws_follow_the_softmax_at_the_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf])
    num_draws = 20_000
    result = drawn(logits.expand(num_draws, 4), 0.5, 9, np.arange(num_draws), np.zeros(num_draws, np.int64))
    shares = torch.bincount(result.token_ids, minlength=4) / num_draws
    assert (shares - torch.softmax(logits / 0.5, dim=0)).abs().max() < 0.01
    assert shares[3] == 0


def test_uniform_draws_fill_the_unit_interval_evenly():
    draws = uniform_draws(0, np.repeat(np.arange(100), 100), np.tile(np.arange(100), 100))
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 45  # chi-squared, 19 degrees of freedom: p of about 0.001
    assert draws.min() >= 0
    assert draws.max() < 1


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (0, 1.0, [0, 1, 2, 3]),
        (9, 1.0, [0, 1, 2, 3]),
        (3, 1.0, [0, 1, 3]),
        (1, 1.0, [1]),
        (0, 0.5, [1]),  # its share is exactly a half
        (0, 0.51, [1, 3]),
        (0, 0.75, [1, 3]),
        (0, 0.8, [0, 1, 3]),
        (2, 0.66, [1]),  # of the best two it has two thirds
        (2, 0.67, [1, 3]),
        (0, 1e-9, [1]),
    ],
)
def test_the_most_likely_tokens_are_those_of_the_definition(top_k, top_p, kept):
    """Shares of 1/8, 1/2, 1/8, 1/4: of the two equal ones the first comes first."""
    logits = torch.tensor([[0.125, 0.5, 0.125, 0.25]], dtype=torch.float64).log()
    filtered = most_likely(logits, top_k, top_p)[0]
    assert torch.nonzero(filtered > -torch.inf).flatten().tolist() == kept
    assert torch.equal(filtered[kept], logits[0, kept])


def test_draws_among_the_most_likely_keep_their_shares_and_their_independence():
    logits = torch.tensor([1.0, 3.0, 0.0, 2.0, -1.0])
    num_draws = 20_000
    arguments = 0.8, 9, np.arange(num_draws), np.zeros(num_draws, np.int64), 3, 0.97
    tokens = drawn(logits.expand(num_draws, 5), *arguments).token_ids
    kept = torch.softmax(logits[[1, 3, 0]] / 0.8, dim=0)  # 0.73, 0.21, 0.06: all three are needed for 0.97
    shares = torch.bincount(tokens, minlength=5) / num_draws
    assert (shares[[1, 3, 0]] - kept).abs().max() < 0.01
    assert shares[[2, 4]].tolist() == [0, 0]

    together = drawn(LOGITS, 0.8, 1, STREAMS, POSITIONS, 7, 0.8).token_ids
    for row in range(12):
        only = slice(row, row + 1)
        alone = drawn(LOGITS[only], 0.8, 1, STREAMS[only], POSITIONS[only], 7, 0.8)
        assert alone.token_ids[0] == together[row]
    assert torch.equal(drawn(LOGITS, 0.8, 1, STREAMS, POSITIONS, 1).token_ids, LOGITS.argmax(dim=-1))


@pytest.mark.parametrize("vocab_size", [2, 255, 256, 257, 1000])
@pytest.mark.parametrize("spread", [1, 100])
def test_the_best_token_by_blocks_is_the_best_token(vocab_size, spread):
    """With few distinct values, so that many are equal."""
    logits = (torch.randn(50, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread).round()
    found, two = best(logits), logits.topk(2, dim=-1).values
    assert torch.equal(found.token_ids, logits.argmax(dim=-1))
    assert torch.equal(found.margins, two[:, 0] - two[:, 1])
