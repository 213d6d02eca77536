"""What a trace is like: stack distances, sharing, arrivals and lengths, exact on the public files."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.block_references import block_references
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.schema import Trace
from traces.sharing import longest_shared_prefix_tokens, lru_hit_blocks, prefix_ceiling, prefix_distances
from traces.stack_distance import COLD, prefix_stack_distances, stack_distances
from traces.statistics import (
    Distribution,
    arrivals_of,
    conversations,
    log2_histogram,
    num_duplicate_rows,
    oddities_of,
    sessions_of,
)

SHARED = Path(__file__).parents[1].parent / "shared"
MOONCAKE = {"conversation": "conversation_trace.jsonl", "synthetic": "synthetic_trace.jsonl"}
public = pytest.mark.skipif(not (SHARED / "traces").is_dir(), reason="no public traces beside this checkout")
property_test = settings(max_examples=150, deadline=None, derandomize=True)


@pytest.fixture(scope="module")
def mooncake() -> dict[str, Trace]:
    return {name: read_trace(SHARED / "traces" / "mooncake" / file) for name, file in MOONCAKE.items()}


def oracle(name: str):
    return json.loads((SHARED / "oracles" / name).read_text())


def stack_of(ids) -> list[int]:
    """Distances by keeping the stack itself."""
    stack: list[int] = []
    distances = []
    for block in ids:
        distances.append(stack.index(block) + 1 if block in stack else COLD)
        if block in stack:
            stack.remove(block)
        stack.insert(0, block)
    return distances


def test_distances_of_a_scan_and_of_a_repeat():
    assert stack_distances(np.array([1, 2, 3, 1, 1, 3, 2])).tolist() == [-1, -1, -1, 3, 1, 2, 3]
    assert stack_distances(np.array([], dtype=np.int64)).tolist() == []
    assert stack_distances(np.array([7])).tolist() == [COLD]


@property_test
@given(st.lists(st.integers(-3, 9), max_size=60))
def test_distances_are_those_of_the_stack(ids):
    assert stack_distances(np.array(ids, dtype=np.int64)).tolist() == stack_of(ids)


@pytest.mark.parametrize(
    ("letters", "capacity", "num_hits"),
    # A hot set under scans, and the sequence of Belady's anomaly.
    [("ABABxyzABuvwABpqrAB", 3, 2), ("ABABxyzABuvwABpqrAB", 5, 8)]
    + [("ABCDABEABCDE", capacity, hits) for capacity, hits in ((3, 2), (4, 4), (5, 7))],
)
def test_hits_at_a_capacity_follow_from_distances(letters, capacity, num_hits):
    distances = stack_distances(np.array([ord(letter) for letter in letters]))
    assert np.count_nonzero((distances != COLD) & (distances <= capacity)) == num_hits


def prefix_hits_by_hand(rows, capacity) -> int:
    """Look up, then touch tail first; the cache holds the `capacity` blocks touched last."""
    stack: list[int] = []
    num_hits = 0
    for row in rows:
        resident = set(stack[:capacity])
        num_hits += next((index for index, block in enumerate(row) if block not in resident), len(row))
        stack = [*row, *(block for block in stack if block not in row)]
    return num_hits


def tree_rows(choices) -> list[list[int]]:
    """Prompts as paths of a tree; the id of a block is its path's."""
    names: dict[tuple, int] = {}
    return [[names.setdefault(tuple(path[: k + 1]), len(names)) for k in range(len(path))] for path in choices]


@property_test
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25))
def test_prefix_distances_count_what_a_request_finds_on_arrival(choices):
    rows = tree_rows(choices)
    distances = prefix_stack_distances(Ragged.of_ids(rows))
    for capacity in range(5, 40, 7):
        hits = (distances != COLD) & (distances <= capacity)
        assert np.count_nonzero(hits) == prefix_hits_by_hand(rows, capacity)


@public
@pytest.mark.parametrize("mode", ["plain", "prefix_tail"])
def test_distances_give_every_lru_figure_of_the_oracle(mooncake, mode):
    ids = mooncake["synthetic"].hash_ids
    distances = stack_distances(ids.values) if mode == "plain" else prefix_stack_distances(ids)
    warm = np.sort(distances[distances != COLD])
    finite = oracle("mooncake_synthetic_trace_own.json")["finite"]
    expected = {int(capacity): figures[f"{mode}.LRU"]["hits"] for capacity, figures in finite.items()}
    assert len(expected) >= 6
    assert {capacity: int(np.searchsorted(warm, capacity, side="right")) for capacity in expected} == expected


@public
def test_distances_of_a_long_trace_take_two_cpu_seconds_at_most(mooncake):
    ids = mooncake["conversation"].hash_ids
    assert len(ids.values) == 288_500
    start_s = time.process_time()
    prefix_stack_distances(ids)
    assert time.process_time() - start_s < 2


@public
@pytest.mark.parametrize("name", MOONCAKE)
def test_the_ceiling_of_both_mooncake_traces_is_the_oracles(mooncake, name):
    ceiling, expected = prefix_ceiling(mooncake[name]), oracle("mooncake_infinite.json")[name]
    assert ceiling.num_block_references == expected["refs"]
    assert ceiling.num_unique_blocks == expected["unique"]
    assert (ceiling.hit_blocks, ceiling.hit_tokens) == (expected["prefix_hit_blocks"], expected["prefix_hit_tokens"])
    assert ceiling.engine_hit_blocks == expected["full_only_blocks"]
    assert ceiling.engine_hit_tokens == expected["full_only_tokens"]
    assert ceiling.num_prompt_tokens == expected["input_tokens"]


def prompts_of(rows, block_tokens=4, **columns) -> Trace:
    """Prompts of whole blocks, one a second."""
    ids = Ragged.of_ids(rows)
    ones = np.ones(len(rows), dtype=np.int64)
    arrivals = np.arange(len(rows)) * 10**12
    return Trace("t", arrivals, ids.row_lengths * block_tokens, ones, block_tokens, ids, **columns)


def test_ten_equal_prompts_hit_all_but_the_block_of_the_last_token():
    # 64 tokens in blocks of 16: 9 x 48 of 640; with a 65th token, 9 x 64 of 650.
    trace = prompts_of([[0, 1, 2, 3]] * 10, block_tokens=16)
    ceiling = prefix_ceiling(trace)
    assert (ceiling.engine_hit_tokens, ceiling.engine_hit_token_ratio) == (432, 0.675)
    longer = replace(trace, num_prompt_tokens=np.full(10, 65), hash_ids=Ragged.of_ids([[0, 1, 2, 3, 4]] * 10))
    assert prefix_ceiling(longer).engine_hit_tokens == 576
    assert prefix_ceiling(longer).hit_tokens == 9 * 65


def test_sharing_below_one_block_cannot_hit_but_is_seen():
    # 100 prompts of 300 tokens, the first 240 shared.
    segments = [[[0, 240], [1000 + 100 * row, 60]] for row in range(100)]
    prompts = Ragged.of_segments(segments)
    trace = Trace("t", np.arange(100), np.full(100, 300), np.ones(100, dtype=np.int64), prompt_segments=prompts)
    ratios = {
        block: round(prefix_ceiling(trace, block).engine_hit_token_ratio, 4)
        for block in (16, 32, 64, 128, 240, 256, 784)
    }
    assert ratios == {16: 0.792, 32: 0.7392, 64: 0.6336, 128: 0.4224, 240: 0.792, 256: 0, 784: 0}
    assert longest_shared_prefix_tokens(trace, most=784) == 240


def test_a_trace_without_prefix_information_has_no_ceiling():
    assert prefix_ceiling(Trace("t", np.arange(2), np.array([5, 5]), np.array([1, 1]))) is None


def test_salts_part_equal_prompts():
    trace = prompts_of([[0, 1], [0, 1], [0, 1]], hash_salt=np.array([1, 2, 1]))
    assert prefix_ceiling(trace).hit_blocks == 2


@property_test
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=25))
def test_an_unlimited_cache_hits_the_ceiling(choices):
    trace = prompts_of(tree_rows(choices))
    hits = lru_hit_blocks(prefix_distances(block_references(trace)), np.array([10, 10**6]))
    assert hits[1] == prefix_ceiling(trace).hit_blocks
    assert hits[0] <= hits[1]


@public
@pytest.mark.parametrize(
    "name", ["azure/code", "azure/conv", "mooncake/conversation_trace", "mooncake/synthetic_trace"]
)
def test_statistics_are_the_oracles(name):
    files = {
        "azure/code": "azure/AzureLLMInferenceTrace_code.csv",
        "azure/conv": "azure/AzureLLMInferenceTrace_conv.csv",
    }
    trace = read_trace(SHARED / "traces" / files.get(name, f"{name}.jsonl"))
    expected, arrivals = oracle("trace_stats.json")[name], arrivals_of(trace)
    assert round(arrivals.span_s, 6) == expected["duration_s"]
    assert round(arrivals.mean_rate_rps, 4) == expected["mean_rate_rps"]
    assert (round(arrivals.gap_mean_s, 6), round(arrivals.gap_cv, 4)) == (expected["iat_mean_s"], expected["iat_cv"])
    assert arrivals.gap_max_s == pytest.approx(expected["iat_max_s"], abs=1e-9)
    assert arrivals.num_distinct_times == expected["distinct_timestamps"]
    assert arrivals.num_ties == expected["tied_steps"]
    assert trace.num_unsorted_rows == expected["unsorted_steps"]
    assert num_duplicate_rows(trace) == expected["exact_duplicate_rows"]
    for column, key in ((trace.num_prompt_tokens, "input"), (trace.num_output_tokens, "output")):
        found = Distribution.of(column)
        assert {"min": found.min, "max": found.max, "sum": found.total} == {
            k: expected[key][k] for k in ("min", "max", "sum")
        }
        assert [found.p50, found.p90, found.p99] == pytest.approx([expected[key][k] for k in ("p50", "p90", "p99")])
        assert round(found.mean, 3) == expected[key]["mean"]


def test_turns_belong_together_by_session_and_by_parent():
    trace = Trace(
        "t",
        np.arange(6),
        np.full(6, 5),
        np.full(6, 5),
        session_id=np.array([7, -1, 7, -1, -1, 8]),
        parent=np.array([-1, -1, -1, 1, 3, -1]),
        think_time_ps=np.array([-1, -1, -1, 10**12, 3 * 10**12, -1]),
    )
    assert conversations(trace).tolist() == [0, 1, 0, 1, 1, 2]
    sessions = sessions_of(trace)
    assert sessions.num_sessions == 3
    assert (sessions.turns.mean, sessions.turns.max, sessions.think_time_s.mean) == (2, 3, 2)
    assert sessions_of(replace(trace, session_id=None, parent=None)) is None


def test_oddities_are_told():
    once = Trace("t", np.zeros(3, dtype=np.int64), np.array([5, 5, 6]), np.array([1, 1, 1]))
    assert oddities_of(once) == ["all requests arrive at once", "exact duplicates of an earlier row: 1 (kept)"]
    shuffled = Trace("t", np.array([3, 1, 2]) * 10**12, np.array([5, 6, 7]), np.array([1, 1, 1])).sorted_by_arrival()
    assert oddities_of(shuffled) == ["rows that the file has below a later one: 1 (sorted by arrival)"]


def test_histograms_are_in_powers_of_two():
    assert log2_histogram(np.array([0, 1, 2, 3, 4, 5, 8, 9])) == [(0, 1), (1, 1), (2, 1), (4, 2), (8, 2), (16, 1)]
