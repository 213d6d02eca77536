"""Decodes that share a prefix read it once: where it pays, with the same words, whichever kernels compute."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES
from decode_runs import runs_of, sharing
from engine_world import TINY, EngineSetup, assert_lockstep, run_trace
from test_cpu_attention import LENGTHS, SHAPES, TOLERANCE, Paged
from world import Settings, trace_of

from engine.batch import BatchItem, build_batch, run_arrays, with_gaps
from engine.executor import TorchExecutor
from engine.kernel_sets import kernels_for
from engine.kv_cache import allocate_kv
from engine.model import Decoder
from engine.shared_prefixes import (
    SharedPrefixes,
    SharedRun,
    SharingRule,
    common_blocks,
    sharing_of,
    worthwhile_runs,
)
from engine.weights import random_weights
from kernels import reference
from kernels.cpu_attention import CpuAttention

ALWAYS = SharingRule(min_shared_tokens=1, min_saved_tokens=1)
CPU = torch.device("cpu")


# ---- who shares -----------------------------------------------------------------------------------------------------


TABLES = np.array([[4, 5, 6, 0], [4, 5, 7, 8], [4, 5, 7, 9], [1, 5, 7, 9], [1, 5, 7, 9]])
NO_CHANGE = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)


def test_neighbours_have_first_blocks_in_common():
    rows = np.arange(5)
    assert common_blocks(TABLES, rows[:-1], rows[1:]).tolist() == [2, 3, 0, 4]
    assert common_blocks(TABLES, rows[:-1], rows[::-1][:-1]).tolist() == [0, 0, 4, 0]
    assert common_blocks(TABLES[:, :0], rows[:-1], rows[1:]).tolist() == [0] * 4


def test_no_block_is_shared_that_somebody_writes_into():
    shared = SharedPrefixes(ALWAYS, 16)
    assert shared.runs(np.arange(5), TABLES, np.array([3, 3, 3, 3, 2]), *NO_CHANGE) == [(0, 3, 2), (3, 5, 2)]
    assert shared.runs(np.arange(5), TABLES, np.array([3, 3, 3, 3, 3]), *NO_CHANGE) == [(0, 3, 2), (3, 5, 3)]
    assert shared.runs(np.arange(2), TABLES, np.array([1, 1]), *NO_CHANGE) == [(0, 2, 1)]
    assert shared.runs(np.arange(1), TABLES, np.array([1]), *NO_CHANGE) == []
    assert shared.runs(np.arange(0), TABLES, np.array([], dtype=np.int64), *NO_CHANGE) == []


def test_what_is_kept_from_step_to_step_is_what_a_fresh_look_finds():
    """Tables grow, are copied on write and change hands; the rows that decode come and go."""
    draw = np.random.default_rng(3)
    kept, tables, lengths = SharedPrefixes(ALWAYS, 4), np.zeros((8, 12), dtype=np.int64), np.full(8, 2)
    for step in range(300):
        changed, columns = [], []
        for row in draw.permutation(8)[: draw.integers(4)]:
            if draw.random() < 0.6 and lengths[row] < 12:
                lengths[row] += 1
            column = draw.integers(lengths[row]) if draw.random() < 0.4 else lengths[row] - 1
            tables[row, column] = 1 - tables[row, column]
            changed.append(row)
            columns.append(column)
        if step % 7 == 0:
            rows = np.sort(draw.permutation(8)[: draw.integers(1, 9)])
        arguments = rows, tables, lengths[rows] - 1
        fresh = SharedPrefixes(ALWAYS, 4).runs(*arguments, *NO_CHANGE)
        assert kept.runs(*arguments, np.array(changed, dtype=np.int64), np.array(columns, dtype=np.int64)) == fresh


def test_the_runs_that_save_most_are_chosen():
    """Four samples of one prompt and two of another, all behind one system prompt of two blocks."""
    common = np.array([20, 20, 20, 2, 30])
    eager = SharingRule(min_shared_tokens=1, min_saved_tokens=1)
    assert worthwhile_runs(common, 16, eager) == [SharedRun(0, 4, 20), SharedRun(4, 6, 30)]
    assert worthwhile_runs(common, 16, eager._replace(min_saved_tokens=600)) == [SharedRun(0, 4, 20)]
    assert worthwhile_runs(common, 16, eager._replace(min_saved_tokens=961)) == []
    assert worthwhile_runs(common, 16, eager._replace(min_shared_tokens=400)) == [SharedRun(4, 6, 30)]
    assert worthwhile_runs(np.array([2, 2, 2, 3, 2]), 16, eager) == [SharedRun(0, 6, 2)]
    assert worthwhile_runs(np.array([], dtype=np.int64), 16, eager) == []


def test_256_tokens_must_be_shared_and_32_mib_saved_a_layer():
    """A token of TINY has 32 numbers a layer, in bf16 64 bytes; of Llama-3-8B 4 KiB."""
    assert sharing_of(TINY, 2) == (SharingRule(256, 2**19),)
    assert sharing_of(replace(TINY, num_kv_heads=8, head_dim=128), 2) == (SharingRule(256, 8192),)
    rule = SharingRule(256, 8192)
    assert worthwhile_runs(np.full(32, 16), 16, rule) == [SharedRun(0, 33, 16)]
    assert worthwhile_runs(np.full(31, 16), 16, rule) == []
    assert worthwhile_runs(np.full(99, 15), 16, rule) == []


def test_groups_with_a_window_and_latents_share_nothing():
    assert sharing_of(ARCHITECTURES["mla"], 2) == ()
    assert None in sharing_of(ARCHITECTURES["mistral"], 2)


# ---- what is computed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_on_the_cpu_cascade_equals_decode_attention(shape, dtype):
    """All see the first blocks of the longest, and then their own."""
    paged, block_size, num_shared = Paged(*shape, dtype), shape[3], 2
    longest = paged.block_tables[LENGTHS.index(max(LENGTHS))]
    tables = torch.cat([longest[:num_shared].expand(len(LENGTHS), -1), paged.block_tables], dim=1)
    num_kv_tokens, query = paged.num_kv_tokens + num_shared * block_size, paged.queries(len(LENGTHS))
    rest = tables, num_kv_tokens
    expected = reference.decode_attention(query, *paged.caches, *rest, paged.scale)
    runs = runs_of([SharedRun(0, len(LENGTHS), num_shared)], *rest, block_size)
    for kernels in (CpuAttention(), reference):
        mixed = kernels.cascade_decode_attention(query, *paged.caches, *rest, runs, paged.scale)
        assert mixed.dtype == dtype
        assert (mixed - expected).abs().max() < TOLERANCE[dtype]


OWN_TOKENS = [4, 8, 1]
SHARED_PROMPT = trace_of(
    [0] * 4,
    [36 + num for num in OWN_TOKENS] + [30],
    [6, 8, 7, 5],
    segments=[[(0, 36), (900 + 50 * num, num)] for num in OWN_TOKENS] + [[(3000, 30)]],
)
SAMPLES = trace_of([0, 0], [21, 9], [9, 6], num_samples=[3, 1])
BEAMS = trace_of([0], [22], [9])


class Counting:
    """A set of kernels that counts its cascades."""

    def __init__(self, kernels):
        self.num_cascades = 0
        self._kernels = kernels

    def __getattr__(self, name):
        return getattr(self._kernels, name)

    def cascade_decode_attention(self, *arguments):
        self.num_cascades += 1
        return self._kernels.cascade_decode_attention(*arguments)


@pytest.mark.parametrize(
    ("name", "trace", "beams"),
    [("auto", SHARED_PROMPT, None), ("auto", BEAMS, 3), ("reference", SAMPLES, None)],
    ids=["cpu, a prompt", "cpu, beams", "reference, samples"],
)
def test_the_engine_says_and_decides_the_same(name, trace, beams):
    kernels = Counting(kernels_for(name, TINY, CPU))
    decoder = Decoder(TINY, random_weights(TINY, seed=11), kernels)
    apart = EngineSetup(Settings(num_blocks=60, block_size=4), beam_width=beams)
    shared = replace(apart, decoder=lambda: decoder, executor=partial(TorchExecutor, sharing=(ALWAYS,)))
    expected, run = run_trace(trace, apart), run_trace(trace, shared)
    assert kernels.num_cascades >= 2 * 4
    assert run.outputs() == expected.outputs()
    assert run.scheduler.log.digest() == expected.scheduler.log.digest()
    assert run.executor.num_near_ties == 0
    assert_lockstep(trace, shared, run)


def test_logits_of_a_step_with_several_runs_are_those_of_the_step_without():
    """Two that share, one alone, three that share: runs lie between rows that share nothing. With Triton's kernels such
    a step is one of `scripts/gpu-check`, and of its dry run.
    """
    decoder = Decoder(TINY, random_weights(TINY, seed=11), CpuAttention())
    tables = [[0, 1, 6], [0, 1, 7], [8, 9, 10], [2, 3, 11], [2, 3, 12], [2, 3, 13]]
    starts = [9, 11, 10, 8, 9, 10]

    def logits(runs):
        kv = allocate_kv(TINY, 14, 4, torch.float32, "cpu")
        for tensor in kv.tensors:
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2)))
        items = [BatchItem([20 + row], starts[row], [table], True) for row, table in enumerate(tables)]
        batch = build_batch(items, 4, "cpu")
        return decoder.forward(sharing(batch, runs, 4) if runs else batch, kv)

    runs = with_gaps([SharedRun(0, 2, 2), SharedRun(3, 6, 2)], 6)
    assert runs == [(0, 2, 2), (2, 3, 0), (3, 6, 2)]
    first_rows, num_shared_tokens = run_arrays(runs, 4)
    assert first_rows.tolist() == [0, 2, 3, 6]
    assert num_shared_tokens.tolist() == [8, 8, 0, 8, 8, 8]
    assert (logits(runs) - logits([])).abs().max() < 1e-5
