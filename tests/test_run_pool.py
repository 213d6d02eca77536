"""LRU kept as runs: a run's root end takes hits, its leaf end gives victims, and nothing else is different."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import Settings, scheduler_of

from core.block_pool import BlockPool, OutOfBlocksError
from core.content import HashKeys
from core.decision_log import DecisionLog, Event
from core.id_tables import IdTables
from core.interfaces import Block, PolicyEnv
from core.numbered_text import NumberedText
from core.prefix_index import HashIndex
from core.run_pool import RunPool
from policies.eviction.lru import LRU


def decided(log: DecisionLog, event: Event) -> list[int]:
    return [int(value) for _, kind, _, value in log.rows() if kind == event]


def use(pool: RunPool, text: list[int]) -> array[int]:
    """A request whose prompt is this text comes and goes. Returns its table."""
    table = hold(pool, text)
    release(pool, table, text)
    return table


def hold(pool: RunPool, text: list[int]) -> array[int]:
    table = leading(pool, text)
    if table:
        pool.adopt(table, pool.idle_parts(table), 0)
    num_new = len(text) - len(table)
    if num_new:
        taken = pool.take(num_new, 0)
        pool.index.insert(numbered(pool, text), len(table), len(text), taken)
        table += taken
    return table


def release(pool: RunPool, table: array[int], text: list[int]) -> None:
    pool.release(table, len(text), numbered(pool, text), 0)


def leading(pool: RunPool, text: list[int]) -> array[int]:
    return pool.index.leading(numbered(pool, text), len(text))


def numbered(pool: RunPool, text: list[int]) -> NumberedText:
    return pool.index.text(HashKeys(0, text, 1, 1, len(text)))


def test_victims_are_leaves_of_the_run_released_first() -> None:
    log = DecisionLog()
    pool = RunPool(6, log)
    assert use(pool, [10, 11, 12]).tolist() == [0, 1, 2]
    assert use(pool, [20, 21, 22]).tolist() == [3, 4, 5]
    assert use(pool, [30, 31]).tolist() == [2, 1], "the two leaves of the older run"
    assert use(pool, [20, 40, 41]).tolist() == [3, 0, 5], "its root was hit, and what is left of the first run is older"
    assert decided(log, Event.EVICT) == [2, 1, 0, 5]
    pool.check_integrity([])


def test_a_hit_in_the_middle_of_a_run_leaves_two_parts() -> None:
    """Two requests compute the same text at once. Once the older leaf is gone, a text goes on in the younger one."""
    log = DecisionLog()
    pool = RunPool(8, log)
    text = [1, 2, 3, 4]
    older, younger = pool.take(4, 0), pool.take(4, 1)
    for table in (older, younger):
        pool.index.insert(numbered(pool, text), 0, 4, table)
    for table in (older, younger):
        release(pool, table, text)
    assert use(pool, [9]).tolist() == [3]  # the older leaf
    assert use(pool, [8]).tolist() == [2]
    held = hold(pool, [1, 2, 3])
    assert held.tolist() == [0, 1, 6]
    assert [(begin, end) for _, begin, end in pool.idle_parts(leading(pool, text))] == [(3, 4)], "the last one only"
    pool.check_integrity([held])
    pool.take(5, 2)
    assert decided(log, Event.EVICT) == [3, 2, 7, 5, 4, 3, 2], "leaves first, on both sides of what is held"


def test_what_two_hold_is_freed_with_the_second() -> None:
    pool = RunPool(8, DecisionLog())
    first, second = hold(pool, [1, 2, 3]), hold(pool, [1, 2, 5])
    assert (pool.num_shared, pool.num_referenced) == (2, 4)
    release(pool, first, [1, 2, 3])
    assert (pool.num_shared, pool.num_referenced, pool.num_cached) == (0, 3, 1)
    release(pool, second, [1, 2, 5])
    assert (pool.num_referenced, pool.num_cached, pool.num_free) == (0, 4, 4)
    pool.check_integrity([])


def test_drawn_are_those_given_back_then_new_ones_then_victims() -> None:
    pool = RunPool(5, DecisionLog())
    cached, held = hold(pool, [1, 2]), pool.take(1, 0)
    release(pool, cached, [1, 2])
    release(pool, held, [])
    drawn, num_free = pool.draw(5)
    assert (drawn.tolist(), num_free) == ([2, 3, 4, 1, 0], 3)
    assert not leading(pool, [1, 2]), "victims lose their content"


def test_more_than_there_is_changes_nothing() -> None:
    pool = RunPool(3, DecisionLog())
    held = hold(pool, [1, 2])
    with pytest.raises(OutOfBlocksError, match="2 blocks asked for, 1 available"):
        pool.take(2, 0)
    pool.check_integrity([held])


class MostRecentlyUsed(LRU):
    """An order of its own, and no word about runs."""

    def pop_victim(self, incoming: object) -> Block:
        return self._order.popitem(last=True)[0]


def test_a_subclass_keeps_its_own_order() -> None:
    usual, other = Settings(10), Settings(10, eviction=MostRecentlyUsed)
    assert isinstance(scheduler_of(usual, by_ids=True).tables, IdTables)
    assert not isinstance(scheduler_of(other, by_ids=True).tables, IdTables)


TEXTS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(
    lambda steps: [int("".join(map(str, steps[: n + 1]))) for n in range(len(steps))]
)


@settings(max_examples=35, deadline=None, derandomize=True)
@given(texts=st.lists(TEXTS, min_size=1, max_size=25), num_blocks=st.integers(4, 9))
def test_requests_one_after_the_other_find_and_evict_what_the_block_pool_does(
    texts: list[list[int]], num_blocks: int
) -> None:
    ours, theirs = DecisionLog(), DecisionLog()
    runs = RunPool(num_blocks, ours)
    index = HashIndex()
    blocks = BlockPool(num_blocks, LRU(PolicyEnv(lambda: 0, num_blocks, 1)), theirs, index)
    runs.attribute_evictions(lambda: 0, 1)
    for text in texts:
        use(runs, text)
        runs.check_integrity([])
        table = index.leading(text)
        if table:
            blocks.adopt(table, 0, readmission=False)
        new = text[len(table) :]
        if new:
            taken = blocks.take(len(new), 0)
            blocks.register(taken, new, 0)
            table += taken
        blocks.release(table[::-1], 0)
    for event in (Event.TOUCH, Event.EVICT, Event.ALLOC, Event.FREE):
        assert decided(ours, event) == decided(theirs, event)
