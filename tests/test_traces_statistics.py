"""What a trace is like: stack distances, sharing, arrivals and lengths, exact on the public files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.ragged import Ragged
from traces.reading import read_trace
from traces.schema import Trace
from traces.stack_distance import COLD, prefix_stack_distances, stack_distances

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
