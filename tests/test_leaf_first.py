"""Eviction from the leaves only, and what happens without it: orphans, which hold memory that no look-up reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from eviction_policies import CAUSAL
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import Workload, workloads
from world import Settings, check_integrity, simulate, trace_of

from core.block_pool import BlockPool
from core.decision_log import DecisionLog, first_difference
from core.errors import InputError
from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv
from core.kv_group import KVGroup
from core.leaf_first import LeafFirst
from core.linked_index import LinkedIndex
from core.metrics import Records, RequestColumns, compute_metrics
from policies.eviction.clock import Clock
from policies.eviction.fifo import FIFO
from policies.eviction.lru import LRU

Build = Callable[[PolicyEnv], EvictionPolicy]


class Leaves:
    """A small pool that evicts from the leaves; texts are strings, a block's key is the text up to its end."""

    def __init__(self, num_blocks: int, build: Build) -> None:
        self.policy = build(PolicyEnv(now=lambda: 0, num_blocks=num_blocks, block_size_tokens=1))
        self.index = LinkedIndex()
        self.pool = BlockPool(num_blocks, LeafFirst(self.policy, self.index), DecisionLog(), self.index)

    def hold(self, text: str) -> list[Block]:
        """A request with this text: adopts what is there, takes and registers the rest."""
        keys = [text[: end + 1] for end in range(len(text))]
        table = self.index.leading(keys)
        if table:
            self.pool.adopt(table, 0, readmission=False)
        missing = keys[len(table) :]
        if missing:
            table += self.take(missing)
        return table

    def take(self, keys: Sequence[str]) -> list[Block]:
        """New blocks with this content, whether it is there already or not."""
        taken = self.pool.take(len(keys), 0, keys)
        places = [len(key) - 1 for key in keys]
        self.pool.register(taken, keys, 0, places, parents=[key[:-1] or None for key in keys])
        return taken

    def release(self, table: Sequence[Block]) -> None:
        self.pool.release(table[::-1], 0)

    def see(self, *texts: str) -> None:
        """Requests one after the other."""
        for text in texts:
            self.release(self.hold(text))

    def evict(self, num_blocks: int = 1) -> list[BlockKey | None]:
        """What goes when so many blocks are wanted; they stay taken."""
        before = {block.block_id: block.key for block in self.pool.blocks}
        return [before.get(block.block_id) for block in self.pool.take(num_blocks, 1)]


# ---- the rule -------------------------------------------------------------------------------------------------------


def test_the_oldest_block_waits_for_its_children_and_goes_right_after_them() -> None:
    """FIFO would take a, ab, c in this order. The chain goes from its end; c was registered later than all of it."""
    world = Leaves(4, FIFO)
    world.see("ab", "c", "abd")
    assert world.evict(4) == ["c", "abd", "ab", "a"]


def test_lru_never_names_a_block_with_children() -> None:
    world = Leaves(5, LRU)
    world.see("abc", "x", "aby")
    order = [block.key for block in world.policy.eviction_order()]
    assert order == world.evict(5) == ["abc", "x", "aby", "ab", "a"]


def test_a_spared_block_is_hit_like_any_other() -> None:
    """The only candidate with children is spared, comes back into use, and is released: nothing was lost of it."""
    world = Leaves(3, Clock)
    world.see("ab", "c")
    assert world.evict() == ["ab"]
    table = world.hold("a")
    assert [block.key for block in table] == ["a"]
    world.release(table)
    world.pool.check_integrity([world.pool.blocks[1:2]])


def test_of_two_blocks_with_the_same_content_one_may_go_before_the_children() -> None:
    """The other one still stands for the content: nothing is orphaned."""
    world = Leaves(4, FIFO)
    first, second = world.take(["a", "ab"]), world.take(["a", "ab"])
    world.release(first)
    world.release(second)
    assert world.evict(4) == ["a", "ab", "ab", "a"]


def test_where_every_candidate_has_children_the_first_named_goes() -> None:
    """A sequence that gives up its beginning but not its end: sliding windows do."""
    world = Leaves(3, FIFO)
    table = world.hold("abc")
    world.release(table[:2])
    assert world.evict(2) == ["a", "ab"]


def test_windowed_models_refuse_it() -> None:
    windowed = Settings(8, leaf_first=True, groups=(KVGroup(1, window_tokens=32),))
    with pytest.raises(InputError, match=r"^pool\.leaf_first=true: .* expected false"):
        simulate(trace_of([0], [4], [1]), windowed)


# ---- for every policy -----------------------------------------------------------------------------------------------

TEXTS = st.text("ab", min_size=1, max_size=6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    policy=st.sampled_from(CAUSAL),
    num_blocks=st.integers(6, 14),
    moves=st.lists(st.tuples(TEXTS, st.integers(0, 3)), min_size=1, max_size=40),
)
def test_no_eviction_orphans_anything(policy: Build, num_blocks: int, moves: list[tuple[str, int]]) -> None:
    """Requests overlap, two of them may compute the same text at once; in the end everything can be evicted."""
    world = Leaves(num_blocks, policy)
    held: list[list[Block]] = []
    for text, num_kept in moves:
        while len(held) > num_kept or world.pool.num_available < len(text):
            world.release(held.pop(0))
        held.append(world.take([text[: end + 1] for end in range(len(text))]) if num_kept == 3 else world.hold(text))
        assert world.index.num_orphans == 0
        world.pool.check_integrity(held)
    for table in held:
        world.release(table)
    for _ in range(num_blocks):
        world.evict()
        assert world.index.num_orphans == 0
    assert len(world.index) == 0


@pytest.mark.parametrize("policy", CAUSAL)
def test_a_victim_costs_a_bounded_number_of_questions(policy: type[EvictionPolicy]) -> None:
    """Long chains, again and again: a block is named once per release at most, be it the request's or the wrapper's."""
    num_asked = num_released = 0

    class Counting(policy):  # type: ignore[misc, valid-type]
        def pop_victim(self, incoming: BlockKey | None) -> Block:
            nonlocal num_asked
            num_asked += 1
            return super().pop_victim(incoming)

        def on_release(self, blocks: Sequence[Block]) -> None:
            nonlocal num_released
            num_released += len(blocks)
            super().on_release(blocks)

    world = Leaves(120, Counting)
    for turn in range(60):
        world.see("s" + "abcdefgh"[turn * 5 % 8] * 50, "s" + "abcdefgh"[turn * 3 % 8] * 30)
    assert num_asked <= num_released


@settings(max_examples=150, deadline=None, derandomize=True)
@given(workload=workloads())
def test_over_lru_it_changes_nothing(workload: Workload) -> None:
    """Releases go leaf to root, so LRU never names a block with children."""
    runs = [
        simulate(
            workload.trace,
            replace(workload.settings, eviction=LRU, leaf_first=leaf_first),
            workload.cost,
            workload.arrivals,
            workload.concurrency,
        )
        for leaf_first in (False, True)
    ]
    difference = first_difference(*(run.scheduler.log.rows() for run in runs))
    assert difference is None, str(difference)
    check_integrity(runs[1].scheduler)


# ---- orphans --------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.tuples(TEXTS, st.booleans()), max_size=40))
def test_children_and_orphans_are_counted_right(moves: list[tuple[str, bool]]) -> None:
    """Single blocks come and go in any order, several with the same content; the counts are those of a walk."""
    index, blocks, free = LinkedIndex(), [], []
    for number, (text, leaves) in enumerate(moves):
        if leaves and blocks:
            free.append(blocks.pop(len(text) % len(blocks)))
            index.remove(free[-1:])
        else:
            blocks.append(free.pop() if free else Block(number))
            index.insert(blocks[-1:], [text], [text[:-1] or None])
        keys: list[Any] = [block.key for block in blocks]
        assert index.num_orphans == sum(key[:-1] != "" and key[:-1] not in keys for key in keys)
        for block in blocks:
            children = sum(key[:-1] == block.key for key in keys)
            assert index.num_children(block.key) == children
            assert index.would_orphan(block) == (children > 0 and keys.count(block.key) == 1)


def orphans(eviction: Build, **changes: Any) -> dict[str, float | None]:
    """Two texts of four blocks in a pool of six; a step a second.

    The second text takes two free blocks and, under FIFO, the first text's first two: its third is an orphan then.
    At 2 s the first text comes back and finds nothing. It takes its own old end and the second text's beginning.
    """
    trace = trace_of([0, 1, 2], [16, 16, 16], [1, 1, 1], [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]], 4)
    run = simulate(trace, Settings(6, block_size=4, eviction=eviction, **changes))
    pool = run.scheduler.tables.pool
    records = Records(
        RequestColumns.of(run.request_arrays()),
        [run.step_totals()],
        [],
        num_blocks=6,
        block_size_tokens=4,
        has_prefix_information=True,
        counts_orphans=pool.counts_orphans,
    )
    found: dict[str, float | None] = compute_metrics(records)["orphan_blocks"]
    return found


def test_orphans_of_a_run() -> None:
    assert orphans(FIFO) == {"time_mean": pytest.approx(2 / 3), "peak": 1}
    assert orphans(FIFO, leaf_first=True) == {"time_mean": 0, "peak": 0}


def test_they_are_not_counted_where_there_can_be_none() -> None:
    """None, not 0: nothing was counted."""
    assert orphans(LRU) == {"time_mean": None, "peak": None}
    assert orphans(FIFO, caching=False) == {"time_mean": None, "peak": None}
    assert orphans(FIFO, groups=(KVGroup(1, window_tokens=32),)) == {"time_mean": None, "peak": None}
