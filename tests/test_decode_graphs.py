"""A step that is replayed with padding gives what the step itself gives. Here a "recording" is the step, run again.

That a CUDA graph replays what was recorded is CUDA's promise; that padding leaves no trace is proved here.
"""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from decode_runs import sharing
from engine_world import TINY

from core.errors import InputError
from engine.batch import BatchInput, BatchItem, build_batch, with_gaps
from engine.decode_graphs import GraphedDecoder, obstacle_to_graphs, recorded_sizes
from engine.decoder_shape import DecoderShape, ExpertShape, LatentShape
from engine.kv_cache import PagedKV, allocate_kv
from engine.model import Decoder
from engine.shared_prefixes import SharedRun
from engine.weights import random_weights
from kernels import fast, reference
from kvtwin.api import compose
from kvtwin.engine_setup import load_engine_setup

BLOCK_SIZE = 4


LATENTS_AND_EXPERTS = replace(TINY, latent=LatentShape(16, 8, 8), experts=ExpertShape(4, 2, 16))


ONE_LAYER = replace(TINY, num_layers=1)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(ONE_LAYER, random_weights(ONE_LAYER, seed=3), fast)


def filled_memory(shape: DecoderShape = ONE_LAYER) -> PagedKV:
    kv = allocate_kv(shape, 9, BLOCK_SIZE, torch.float32, "cpu")
    for cache in kv.tensors:
        cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(1)))
        cache[:, 8] = torch.nan  # no sequence's
    return kv


def decodes(*contexts: int) -> BatchInput:
    tables = [[5, 1, 7], [0, 3, 2]]
    items = [BatchItem([11 + row], context - 1, [tables[row]], row != 1) for row, context in enumerate(contexts)]
    return build_batch(items, BLOCK_SIZE, "cpu")


def same_memory(a: PagedKV, b: PagedKV) -> bool:
    """Up to the order of additions, which may depend on the number of rows."""
    return all(torch.allclose(x, y, atol=1e-5, equal_nan=True) for x, y in zip(a.tensors, b.tensors, strict=True))


@pytest.mark.parametrize("shape", [TINY, LATENTS_AND_EXPERTS], ids=["heads", "latents, experts"])
def test_a_replayed_step_computes_and_caches_what_the_step_does(shape):
    decoder = Decoder(shape, random_weights(shape, seed=3), fast)
    kv, expected_kv = filled_memory(shape), filled_memory(shape)
    runs = []

    def record(run):
        runs.append(None)
        return run

    graphed = GraphedDecoder(decoder, kv, [3, 1], blocks_per_sequence=3, record=record)
    assert len(runs) == 2
    for batch in (decodes(9, 4), decodes(10)):  # two of three rows; then fewer than before, in the smaller recording
        logits = graphed.forward(batch, kv)

        assert torch.allclose(logits, decoder.forward(batch, expected_kv), atol=1e-5)
        assert len(logits) == 1  # of the row that wants them
        assert same_memory(kv, expected_kv)


def test_rows_left_over_from_a_larger_batch_are_padding_again(decoder):
    kv, expected_kv = filled_memory(), filled_memory()
    graphed = GraphedDecoder(decoder, kv, [2], blocks_per_sequence=3, record=lambda run: run)
    for batch in (decodes(9, 4), decodes(10)):
        graphed.forward(batch, kv)
        decoder.forward(batch, expected_kv)

    assert same_memory(kv, expected_kv)


def test_what_was_not_recorded_runs_as_before():
    decoder = Decoder(ONE_LAYER, random_weights(ONE_LAYER, seed=3))
    kv, expected_kv = filled_memory(), filled_memory()

    def record(run):
        return lambda: pytest.fail("nothing here fits the recording")

    graphed = GraphedDecoder(decoder, kv, [1], blocks_per_sequence=2, record=record)
    prefill = build_batch([BatchItem([1, 2, 3], 0, [[6]], True)], BLOCK_SIZE, "cpu")
    shared = sharing(decodes(3), [SharedRun(0, 1, 0)], BLOCK_SIZE)
    for batch in (prefill, decodes(3, 4), decodes(9), shared):  # not a decode; too many; too long; a prefix read once
        assert torch.equal(graphed.forward(batch, kv), decoder.forward(batch, expected_kv))


def test_steps_that_share_prefixes_are_replayed_whoever_shares_what(decoder):
    """Rows that share two blocks, one, or none, in one recording: fewer rows and runs than before leave no trace."""
    kv, expected_kv = filled_memory(), filled_memory()
    steps = []

    def record(run):
        steps.append(run)
        return lambda: (replayed.append(run), run())[1]

    replayed = []
    graphed = GraphedDecoder(decoder, kv, [4], blocks_per_sequence=3, record=record, shares=(True,))
    first = [([5, 1, 7], 10), ([5, 1, 4], 9), ([6, 0, 0], 2), ([3, 2, 0], 6)]
    then = [([5, 1, 7], 11), ([3, 2, 0], 7), ([3, 6, 0], 5)]
    for rows, runs in ((first, [SharedRun(0, 2, 2)]), (then, [SharedRun(1, 3, 1)]), (then[:2], [])):
        items = [BatchItem([row + 9], length - 1, [table], True) for row, (table, length) in enumerate(rows)]
        batch = build_batch(items, BLOCK_SIZE, "cpu")
        shared = sharing(batch, with_gaps(runs, len(rows)), BLOCK_SIZE) if runs else batch
        assert torch.allclose(graphed.forward(shared, kv), decoder.forward(batch, expected_kv), atol=1e-5)
        assert same_memory(kv, expected_kv)
    alone, together = steps[::-1] if replayed[0] is steps[0] else steps
    assert replayed == [together, together, alone]


def test_another_memory_than_the_recorded_one_is_refused(decoder):
    graphed = GraphedDecoder(decoder, filled_memory(), [1], blocks_per_sequence=3, record=lambda run: run)

    with pytest.raises(ValueError, match="recorded with another KV memory"):
        graphed.forward(decodes(3), filled_memory())


CUDA = torch.device("cuda")


def test_what_cannot_be_recorded_is_named():
    assert obstacle_to_graphs(fast, CUDA) is None
    assert obstacle_to_graphs(fast, torch.device("cpu")) == "graphs are CUDA's, the engine runs on cpu"
    assert obstacle_to_graphs(reference, CUDA) == "only Triton's kernels know rows of padding"


def test_graphs_on_a_cpu_are_refused():
    config, _ = compose("engine", "chat_sample", ["model=tiny", "engine.cuda_graphs=true", "engine.device=cpu"], {})
    with pytest.raises(InputError, match="graphs are CUDA's, the engine runs on cpu; expected false"):
        load_engine_setup(config)


def test_sizes_are_close_together_where_a_row_costs_much():
    assert recorded_sizes(1) == [1]
    assert recorded_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = recorded_sizes(256)
    assert sizes[-3:] == [192, 224, 256]
    assert max(after / (before + 1) for before, after in pairwise(sizes[3:])) == 16 / 9
    assert max(after / (before + 1) for before, after in pairwise(sizes[5:])) < 1.3
