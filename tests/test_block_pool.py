"""The block pool: every block is free, cached or referenced, is taken in a known order, and is never lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.block_pool import BlockPool, FreeOrder, OutOfBlocksError, hears_of_each
from core.decision_log import DecisionLog, Event
from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv, PriorityEviction
from core.prefix_index import HashIndex
from policies.eviction.fifo import FIFO
from policies.eviction.lru import LRU
from policies.eviction.mru import MRU
from policies.eviction.random import Random
from policies.eviction.sieve import Sieve

Build = Callable[[PolicyEnv], EvictionPolicy]


class LargestIdLast(PriorityEviction):
    """A whole policy in three lines."""

    def priority(self, block: Block) -> float:
        return block.block_id


POLICIES: list[Build] = [LRU, FIFO, Random, LargestIdLast]


def pool_of(
    num_blocks: int | None, eviction: Build = LRU, free_order: FreeOrder = FreeOrder.UNHASHED_FIRST, **options: Any
) -> BlockPool:
    seed = options.pop("seed", 0)
    env = PolicyEnv(now=lambda: 0, num_blocks=num_blocks, block_size_tokens=4, seed=seed)
    return BlockPool(num_blocks, eviction(env), DecisionLog(), HashIndex(), free_order, **options)


def ids(blocks: Sequence[Block]) -> list[int]:
    return [block.block_id for block in blocks]


def cached(pool: BlockPool, *keys: BlockKey) -> list[Block]:
    """A chain with this content, taken, registered and released."""
    blocks = pool.take(len(keys), 0)
    pool.register(blocks, keys, 0)
    pool.release(blocks[::-1], 0)
    return blocks


# ---- the order in which blocks are taken ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_order", "expected"),
    [(FreeOrder.UNHASHED_FIRST, [3, 2, 4, 5, 1, 0]), (FreeOrder.APPEND_ALL, [4, 5, 3, 2, 1, 0])],
)
def test_free_queue_after_a_release(free_order: FreeOrder, expected: list[int]) -> None:
    """Blocks 0 to 3 held a sequence whose first two blocks are cached; it is released tail first."""
    pool = pool_of(6, free_order=free_order)
    table = pool.take(4, 0)
    pool.register(table[:2], ["a", "b"], 0)
    pool.release(table[::-1], 0)
    assert pool.free_queue() == expected
    assert ids(pool.take(6, 1)) == expected, "and that is the order in which they are taken"
    assert (pool.num_evictions, len(pool.index)) == (2, 0)


def test_without_caching_the_queue_is_a_stack() -> None:
    pool = pool_of(8)
    first, second = pool.take(3, 0), pool.take(2, 1)
    pool.release(first[::-1], 0)
    pool.release(second[::-1], 1)
    assert pool.free_queue() == [4, 3, 2, 1, 0, 5, 6, 7], "the tail of what was released last comes first"


def test_a_policy_that_extends_lru_names_its_own_victims() -> None:
    """LRU names all victims of one call at once; MRU, which overrides `pop_victim`, must still be asked."""
    for build, expected in ((LRU, [2, 1, 0]), (MRU, [0, 1, 2])):
        pool = pool_of(3, build)
        cached(pool, "a", "b", "c")
        assert ids(pool.take(3, 1)) == expected


def test_ids_start_where_told_and_an_unbounded_pool_grows() -> None:
    pool = pool_of(None, first_block_id=1)
    assert ids(pool.take(3, 0)) == [1, 2, 3]
    assert pool.block(2) is pool.blocks[1]
    assert pool.take(1_000, 0)[-1].block_id == 1_003


def test_asking_for_too_much_changes_nothing() -> None:
    pool = pool_of(5)
    cached(pool, "a")
    table = pool.take(2, 0)
    pool.release(table[1:], 0)
    before = pool.free_queue()
    with pytest.raises(OutOfBlocksError, match="5 blocks asked for, 4 available"):
        pool.take(5, 1)
    assert pool.free_queue() == before
    pool.check_integrity([table[:1]])


def test_one_block_for_each_of_many_requests() -> None:
    """What decodes do: the log says whose block is whose."""
    pool = pool_of(5)
    pool.take_for([7, 3, 9])
    assert pool._log.rows().tolist() == [[0, Event.ALLOC, who, block] for who, block in ((7, 0), (3, 1), (9, 2))]


# ---- content ----------------------------------------------------------------------------------------------------


def test_content_survives_until_its_block_is_taken() -> None:
    pool = pool_of(3)
    (block,) = cached(pool, "a")
    assert pool.index.get("a") is block
    pool.take(2, 1)
    assert pool.index.get("a") is block, "others were free"
    assert pool.take(1, 2) == [block]
    assert (pool.index.get("a"), block.key, pool.num_evictions) == (None, None, 1)


def test_a_registration_says_where_in_its_chain_a_block_is_and_for_whom() -> None:
    pool = pool_of(4)
    table = pool.take(4, 0)
    pool.register(table[:1], ["a"], 0)
    pool.register(table[1:3], ["b", "d"], 0, positions=(1, 3), category=7)
    assert [(block.position, block.category) for block in table] == [(0, 0), (1, 7), (3, 7), (0, 0)]


def test_the_oldest_of_equal_contents_serves_then_the_next() -> None:
    pool = pool_of(4)
    oldest, middle, youngest = (cached(pool, "a")[0] for _ in range(3))
    assert pool.index.get("a") is oldest
    pool.adopt((youngest,), 0, readmission=False)
    assert ids(pool.take(2, 1)) == [3, oldest.block_id]
    assert pool.index.get("a") is middle
    assert pool.take(1, 1) == [middle]
    assert pool.index.get("a") is youngest
    assert len(pool.index) == 1


def test_adopting_takes_a_block_out_of_reach() -> None:
    pool = pool_of(2)
    first, second = cached(pool, "a", "b")
    pool.adopt((first,), 1, readmission=False)
    pool.adopt((first,), 2, readmission=False)
    assert pool.take(1, 3) == [second], "though the tail would have gone first anyway"
    pool.release((first,), 1)
    assert pool.num_available == 0, "somebody still holds it"
    pool.release((first,), 2)
    assert pool.take(1, 4) == [first]


def test_counts_of_a_pool_that_appends_all() -> None:
    """Released without content, a block is the policy's, but it is not cached."""
    pool = pool_of(4, free_order=FreeOrder.APPEND_ALL)
    table = pool.take(3, 0)
    pool.register(table[:1], ["a"], 0)
    pool.release(table[::-1], 0)
    assert (pool.num_referenced, pool.num_cached, pool.num_free, pool.num_available) == (0, 1, 1, 4)
    pool.check_integrity([])


# ---- eviction ---------------------------------------------------------------------------------------------------


def victims(pool: BlockPool) -> str:
    """Contents in the order in which they are lost when the whole pool is taken."""
    order = [block.key for block in pool._eviction.eviction_order()]
    pool.take(pool.num_free, 9)
    lost = [next(str(key) for key in order if pool.index.get(key) is block) for block in _one_by_one(pool)]
    assert lost == order, "eviction_order says what pop_victim does"
    return "".join(lost)


def _one_by_one(pool: BlockPool) -> Any:
    while pool.num_available:
        upcoming = pool._eviction.eviction_order()[0]
        yield upcoming
        assert pool.take(1, 9) == [upcoming]


def history(pool: BlockPool) -> BlockPool:
    """Chains abc and xy are cached in this order; then b's chain is used again, ab only."""
    a, b, _ = cached(pool, "a", "b", "c")
    cached(pool, "x", "y")
    pool.adopt((a, b), 1, readmission=False)
    pool.release((b, a), 1)
    return pool


@pytest.mark.parametrize(
    ("eviction", "expected"),
    [(LRU, "cyxba"), (FIFO, "abcxy"), (LargestIdLast, "abcxy")],
    ids=["lru", "fifo", "priority"],
)
def test_eviction_order(eviction: Build, expected: str) -> None:
    assert victims(history(pool_of(6, eviction))) == expected


def test_random_eviction_repeats_with_its_seed() -> None:
    orders = [victims(history(pool_of(6, Random, seed=seed))) for seed in (1, 1, 2, 3, 4)]
    assert orders[0] == orders[1]
    assert len(set(orders)) > 2
    assert all(sorted(order) == sorted("abcxy") for order in orders)


class Witness(LRU):
    """Writes down what a policy is told."""

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self.told: list[tuple[str, Any]] = []

    def on_insert(self, blocks: Sequence[Block]) -> None:
        self.told.append(("insert", [block.key for block in blocks]))

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        self.told.append(("hit", [block.key for block in blocks]))
        assert any(block.ref_count == 0 for block in blocks), "told before they are acquired"

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        super().on_acquire(blocks)
        self.told.append(("acquire", [block.key for block in blocks]))

    def on_release(self, blocks: Sequence[Block]) -> None:
        super().on_release(blocks)
        self.told.append(("release", [block.key for block in blocks]))

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        self.told.append(("pop", incoming))
        return super().pop_victim(incoming)

    def on_evict(self, block: Block) -> None:
        self.told.append(("evict", block.key))


def test_what_a_policy_is_told_and_when() -> None:
    pool = pool_of(3, Witness)
    a, b, _ = cached(pool, "a", "b", "c")
    pool.adopt((a,), 1, readmission=False)
    pool.adopt((a, b), 2, readmission=False)
    pool.release((b, a), 2)
    pool.take(2, 3, incoming=["p", "q"])
    assert pool._eviction.told == [
        ("insert", ["a", "b", "c"]),
        ("release", ["c", "b", "a"]),  # leaf to root
        ("hit", ["a"]),
        ("acquire", ["a"]),
        ("hit", ["a", "b"]),  # referenced blocks too, root to leaf
        ("acquire", ["b"]),  # only those whose count rose from 0
        ("release", ["b"]),  # somebody still holds a
        ("pop", "p"),
        ("evict", "c"),  # with the key that it loses, before the next is named
        ("pop", "q"),
        ("evict", "b"),
    ]


@pytest.mark.parametrize("eviction", POLICIES)
def test_every_policy_gives_up_every_block_once(eviction: Build) -> None:
    """Conformance: what is released comes out exactly once; what is referenced never does."""
    pool = pool_of(40, eviction)
    chains = [cached(pool, *(f"{chain}{depth}" for depth in range(4))) for chain in range(10)]
    pinned = [block for chain in chains[::3] for block in chain[:2]]
    pool.adopt(pinned, 1, readmission=False)
    taken = pool.take(pool.num_available, 2)
    assert len(set(ids(taken))) == 40 - len(pinned)
    assert not set(ids(taken)) & set(ids(pinned))
    assert len(pool.index) == len(pinned)
    pool.release(pinned[::-1], 1)
    assert sorted(ids(pool.take(len(pinned), 3))) == sorted(ids(pinned))


# ---- anything, in any order -------------------------------------------------------------------------------------


class PoolMachine(RuleBasedStateMachine):
    """Tables come, grow, share, publish and go; after every move the states partition the pool."""

    @initialize(
        num_blocks=st.integers(1, 12),
        eviction=st.sampled_from(POLICIES),
        free_order=st.sampled_from(list(FreeOrder)),
        first_block_id=st.integers(0, 1),
    )
    def build(self, num_blocks: int, eviction: Build, free_order: FreeOrder, first_block_id: int) -> None:
        self.pool = pool_of(num_blocks, eviction, free_order, first_block_id=first_block_id)
        self.tables: list[list[Block]] = []

    @rule(number=st.integers(1, 4))
    def take(self, number: int) -> None:
        if number > self.pool.num_available:
            with pytest.raises(OutOfBlocksError):
                self.pool.take(number, 0)
        else:
            expected = self.pool.free_queue()[:number]
            self.tables.append(self.pool.take(number, 0))
            assert ids(self.tables[-1]) == expected

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table[::-1], 0)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), family=st.integers(0, 2))
    def register(self, data: st.DataObject, family: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        fresh = [(block, (family, depth)) for depth, block in enumerate(table) if block.key is None]
        if fresh:
            blocks, keys = zip(*fresh, strict=True)
            self.pool.register(blocks, keys, 0)

    @rule(family=st.integers(0, 2), readmission=st.booleans())
    def adopt(self, family: int, readmission: bool) -> None:
        hits = self.pool.index.leading((family, depth) for depth in range(4))
        if hits:
            self.pool.adopt(hits, 0, readmission)
            self.tables.append(hits)

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check_integrity(self.tables)
            assert len(self.pool.free_queue()) == self.pool.num_available
            assert self.pool.num_referenced + self.pool.num_available == self.pool.num_blocks


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


# ---- victims together, or one at a time ---------------------------------------------------------------------------


class OldestFirst(LRU):
    """Changes whom LRU names: what LRU has for several does not hold for it."""

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        return super().pop_victim(incoming)


class Watching(Sieve):
    """Wants to hear of every victim, which SIEVE by itself does not."""

    def on_evict(self, block: Block) -> None:
        super().on_evict(block)
        self.num_heard = getattr(self, "num_heard", 0) + 1


@pytest.mark.parametrize(
    ("policy", "expected"),
    [(LRU, False), (OldestFirst, True), (LargestIdLast, False), (FIFO, True), (Sieve, False), (Watching, True)],
)
def test_who_changes_a_part_of_a_policy_is_asked_for_it(policy: type[EvictionPolicy], expected: bool) -> None:
    assert hears_of_each(policy(PolicyEnv(lambda: 0, 4, 4))) is expected


def test_a_subclass_hears_of_victims_that_its_base_does_not() -> None:
    pool = pool_of(4, Watching)
    cached(pool, "a", "b", "c")
    pool.take(3, 1)
    assert pool._eviction.num_heard == 2  # type: ignore[attr-defined]
