"""Block references against one policy: equal to independent simulations of the public traces, and to the block pool.

The oracle files name, per capacity, hits of `plain` (every block on its own), `prefix_fwd` (touched head first) and
`prefix_tail` (request pinned, touched tail first). A policy is added to ORACLES by a line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.block_pool import BlockPool
from core.decision_log import NoLog
from core.errors import InputError
from core.interfaces import Block, EvictionPolicy, PolicyEnv
from core.prefix_index import HashIndex
from kvtwin.block_caches import BlockwiseCache
from kvtwin.block_replay import Mode, Touch, replay_blocks
from policies.eviction.clock import Clock
from policies.eviction.fifo import FIFO
from policies.eviction.lfu import LFU
from policies.eviction.lru import LRU
from policies.eviction.random import Random
from policies.eviction.sieve import Sieve
from traces.block_references import BlockReferences, block_references
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.samples import sample_path
from traces.schema import Trace
from traces.transforms import limit

SHARED = Path(__file__).parents[1].parent / "shared"
needs_oracles = pytest.mark.skipif(not (SHARED / "oracles").is_dir(), reason="no oracles beside this checkout")
MODES = {
    "plain": (Mode.PLAIN, Touch.TAIL),
    "prefix_fwd": (Mode.PREFIX, Touch.HEAD),
    "prefix_tail": (Mode.PREFIX, Touch.TAIL),
}
CAPACITIES = ("1000", "10000")
ORACLES: dict[str, type[EvictionPolicy]] = {"LRU": LRU, "FIFO": FIFO, "LFU": LFU, "CLOCK": Clock, "SIEVE": Sieve}
POLICIES = [LRU, FIFO, Random]


@cache
def references(name: str) -> BlockReferences:
    return block_references(read_trace(SHARED / "traces" / "mooncake" / f"{name}.jsonl"))


@cache
def oracle(name: str) -> dict:
    return json.loads((SHARED / "oracles" / f"mooncake_{name}.json").read_text())


def trace_of(rows: Sequence[Sequence[int]], num_tokens: Sequence[int] | None = None, block_tokens: int = 4) -> Trace:
    lengths = [block_tokens * len(row) for row in rows] if num_tokens is None else num_tokens
    return Trace(
        "rows",
        np.arange(len(rows)),
        np.array(lengths),
        np.ones(len(rows), dtype=np.int64),
        block_tokens,
        Ragged.of_ids(rows),
    )


@st.composite
def trees(draw: st.DrawFn) -> BlockReferences:
    """Random requests: each follows an earlier one for some blocks, then goes its own way."""
    rows: list[list[int]] = []
    next_id = 0
    for _ in range(draw(st.integers(1, 12))):
        earlier = draw(st.sampled_from(rows)) if rows else []
        shared = earlier[: draw(st.integers(0, len(earlier)))]
        own = draw(st.integers(0 if shared else 1, 4))
        rows.append([*shared, *range(next_id, next_id + own)])
        next_id += own
    return block_references(trace_of(rows))


# ---- the references of a trace ------------------------------------------------------------------------------------


def test_blocks_are_numbered_by_appearance_and_the_last_one_may_be_partial() -> None:
    found = block_references(trace_of([[70, 71, 9], [70, 5]], num_tokens=[9, 8]))

    assert found.rows() == [[0, 1, 2], [0, 3]]
    assert found.num_tokens.tolist() == [4, 4, 1, 4, 4]
    assert found.parents().tolist() == [-1, 0, 1, 0]
    assert (found.num_references, found.num_unique) == (5, 4)


def test_prompts_that_point_at_text_share_blocks_of_equal_text() -> None:
    """8 tokens from place 100, then 6 more: in the second prompt they start elsewhere."""
    segments = Ragged.of_segments([[(100, 8), (300, 6)], [(100, 4), (104, 4), (301, 6)]])
    trace = Trace("text", np.arange(2), np.array([14, 14]), np.ones(2, dtype=np.int64), prompt_segments=segments)

    assert block_references(trace, block_tokens=4).rows() == [[0, 1, 2, 3], [0, 1, 4, 5]]
    assert block_references(trace, block_tokens=16).rows() == [[0], [1]]


def test_salts_keep_equal_prompts_apart() -> None:
    ids = trace_of([[1, 2], [1, 2], [1, 2]])
    salted = Trace(
        "salted",
        ids.arrival_ps,
        ids.num_prompt_tokens,
        ids.num_output_tokens,
        4,
        ids.hash_ids,
        hash_salt=np.array([0, 7, 0]),
    )
    assert block_references(salted).rows() == [[0, 1], [2, 3], [0, 1]]


def test_a_bundled_trace_has_references() -> None:
    found = block_references(read_trace(sample_path("chat")))
    assert found.num_unique < found.num_references
    assert found.parents().min() == -1
    assert found.num_tokens.sum() == read_trace(sample_path("chat")).num_prompt_tokens.sum()


def test_what_has_no_references_is_refused() -> None:
    lengths = np.array([4])
    with pytest.raises(InputError, match="does not tell which prompts share a prefix"):
        block_references(Trace("bare", np.array([0]), lengths, lengths))
    with pytest.raises(InputError, match="names blocks of 4 tokens"):
        block_references(trace_of([[1]]), block_tokens=16)
    with pytest.raises(InputError, match="row 1: its block 1 followed another block before"):
        block_references(trace_of([[1, 2], [3, 2]])).parents()


# ---- hits, against independent simulations ------------------------------------------------------------------------


@needs_oracles
@pytest.mark.parametrize(
    ("policy", "mode"), [("LRU", "plain"), *product(("LRU", "LFU", "FIFO"), ("prefix_fwd", "prefix_tail"))]
)
def test_every_capacity_of_the_synthetic_trace(policy: str, mode: str) -> None:
    """`tests/test_mrc.py` has the other policies in plain mode."""
    trace = references("synthetic_trace")
    for capacity in CAPACITIES:
        found = replay_blocks(trace, ORACLES[policy], int(capacity), *MODES[mode])
        told = oracle("synthetic_trace_own")["finite"][capacity][f"{mode}.{policy}"]
        assert found.hit_blocks == told["hits"], capacity
        assert found.miss_blocks == trace.num_references - found.hit_blocks
        assert found.hit_tokens == told.get("hit_tokens", found.hit_tokens), capacity


@needs_oracles
@pytest.mark.parametrize("policy", ["LRU", "LFU", "FIFO"])
def test_leaves_of_the_synthetic_trace(policy: str) -> None:
    for capacity in CAPACITIES:
        found = replay_blocks(references("synthetic_trace"), ORACLES[policy], int(capacity), Mode.LEAF)
        assert found.hit_blocks == oracle("synthetic_trace_leaf")[capacity][f"leaf.{policy}"]["hits"], capacity
        assert found.orphan_block_ratio == 0


@needs_oracles
@pytest.mark.parametrize("piece", ["conversation_trace:500", "synthetic_trace:500"])
def test_small_slices(piece: str) -> None:
    name, _, num_requests = piece.partition(":")
    trace = read_trace(SHARED / "traces" / "mooncake" / f"{name}.jsonl")
    found = block_references(limit(trace, int(num_requests)))
    for capacity, hits in oracle("small_slices")[f"{name}[:{num_requests}]"]["finite"].items():
        for key, expected in hits.items():
            mode, _, policy = key.partition(".")
            if policy in ORACLES:
                result = replay_blocks(found, ORACLES[policy], int(capacity), *MODES[mode])
                assert result.hit_blocks == expected, (capacity, key)


@needs_oracles
@pytest.mark.parametrize("name", ["conversation", "synthetic"])
def test_a_cache_that_holds_everything(name: str) -> None:
    trace, expected = references(f"{name}_trace"), oracle("infinite")[name]
    result = replay_blocks(trace, LRU, trace.num_unique, Mode.PREFIX)
    assert (result.hit_blocks, result.hit_tokens) == (expected["prefix_hit_blocks"], expected["prefix_hit_tokens"])


# ---- the cache of one access after the other is the pool ------------------------------------------------------------


class PoolCache:
    """`BlockwiseCache` by way of the product's pool."""

    def __init__(self, policy: EvictionPolicy, capacity_blocks: int) -> None:
        self._pool = BlockPool(capacity_blocks, policy, NoLog(), HashIndex())

    def access(self, key: int, position: int, category: int) -> bool:
        found = self._pool.index.get(key)
        if found is not None:
            held = [found]
            self._pool.adopt(held, 0, readmission=False)
        else:
            held = self._pool.take(1, 0, (key,))
            self._pool.register(held, (key,), 0, (position,), category)
        self._pool.release(held, 0)
        return found is not None


class Told:
    """Writes down every call of a policy."""

    def __init__(self, policy: EvictionPolicy) -> None:
        self.calls: list[tuple] = []
        for name in ("on_hit", "on_acquire", "on_release", "on_insert", "on_evict", "pop_victim"):
            setattr(policy, name, self._noted(name, getattr(policy, name)))

    def _noted(self, name, call):
        def noted(first, *rest):
            blocks = [first] if isinstance(first, Block) else first if name != "pop_victim" else []
            seen = [(block.block_id, block.key, block.ref_count, block.position, block.category) for block in blocks]
            self.calls.append((name, seen or first, *rest))
            return call(first, *rest)

        return noted


class AllHooks(FIFO):
    """Overrides every hook, so that none is skipped."""

    def on_hit(self, blocks, readmission):
        pass


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 8), st.sampled_from([LRU, AllHooks, Random]))
def test_a_policy_is_told_the_same_by_both(keys: list[int], capacity: int, make: type[EvictionPolicy]) -> None:
    calls, hits = [], []
    for cache_of in (BlockwiseCache, PoolCache):
        policy = make(PolicyEnv(lambda: 0, capacity, 16))
        told = Told(policy)
        under_test = cache_of(policy, capacity)
        hits.append([under_test.access(key, key // 2, key % 3) for key in keys])
        calls.append(told.calls)
    assert hits[0] == hits[1]
    if make is AllHooks:
        assert calls[0] == calls[1]


# ---- what theory says -----------------------------------------------------------------------------------------------


@given(trees(), st.integers(1, 20))
def test_lru_touched_head_first_hits_as_often_as_plain(found: BlockReferences, capacity: int) -> None:
    assert replay_blocks(found, LRU, capacity, Mode.PREFIX, Touch.HEAD) == replay_blocks(
        found, LRU, capacity, Mode.PLAIN
    )


@given(trees(), st.sampled_from(POLICIES), st.sampled_from(list(MODES.values())))
def test_policies_are_equal_where_everything_fits(
    found: BlockReferences, make: type[EvictionPolicy], how: tuple[Mode, Touch]
) -> None:
    result = replay_blocks(found, make, max(found.num_unique, 1), *how)
    assert result.miss_blocks == found.num_unique


def test_of_a_request_longer_than_the_capacity_the_beginning_stays() -> None:
    found = block_references(trace_of([[1, 2, 3, 4], [1, 2, 3, 4], [9], [1, 2, 3, 4]]))
    result = replay_blocks(found, LRU, 3, Mode.PREFIX)
    assert result.hit_blocks == 3 + 2, "block 9 takes the place of the last one that had fitted"


def test_the_policy_is_told_the_time_of_arrival() -> None:
    times = []

    class Timed(LRU):
        def on_release(self, blocks):
            times.append(self.env.now())
            super().on_release(blocks)

    replay_blocks(block_references(trace_of([[1], [1, 2], [3]])), Timed, 2, Mode.PREFIX)
    assert times == [0, 1, 2]
