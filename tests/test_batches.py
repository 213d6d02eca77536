"""Eviction policies that decide for many blocks at once decide what they do for one block after the other."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_spans import assert_equal, assert_sound
from world import Bench, Run, Settings, scheduler_of, simulate, trace_of

from core.batch_eviction import BatchEviction, Ints
from core.batch_index import BatchIndex
from core.batch_order import BatchOrder
from core.batch_pool import BatchPool
from core.block import Block
from core.block_tables import BlockTables
from core.content import HashKeys
from core.decision_log import DecisionLog, Event
from core.id_line import IdLine
from core.id_tables import IdTables
from core.interfaces import PolicyEnv
from core.priority_order import PriorityOrder
from policies.eviction.gdsf import GDSF
from policies.eviction.ghost_batches import GhostBatches
from policies.eviction.lru import LRU
from policies.eviction.s3fifo import S3FIFO
from policies.eviction.shares import Ghosts
from policies.eviction.sieve import Sieve
from policies.preemption.cost_based import CostBased
from traces.schema import Ragged, Trace

POLICIES: dict[str, Any] = {
    "sieve": Sieve,
    "s3fifo": S3FIFO,
    "s3fifo, all parts used": partial(S3FIFO, small_ratio=0.4, ghost_ratio=0.3, threshold=1, warmup=True),
    "gdsf": GDSF,
}


# ---- whole runs -------------------------------------------------------------------------------------------------


@st.composite
def long_texts(draw: st.DrawFn) -> Trace:
    """Prompts of up to 90 blocks of one token, of three families; some come twice at once, some come again."""
    num = draw(st.integers(4, 10))
    rows = []
    for row in range(num):
        family, num_shared, num_own = draw(st.integers(0, 2)), draw(st.integers(0, 70)), draw(st.integers(1, 20))
        own = draw(st.integers(0, 2)) * 1000 + row * 10_000
        rows.append([family * 1000 + d for d in range(num_shared)] + [own + 5000 + d for d in range(num_own)])
    arrival_s = sorted(draw(st.lists(st.integers(0, 40), min_size=num, max_size=num)))
    outputs = draw(st.lists(st.integers(1, 25), min_size=num, max_size=num))
    return trace_of(arrival_s, [len(row) for row in rows], outputs, hash_ids=rows, hash_block_tokens=1)


@st.composite
def texts_that_go_on(draw: st.DrawFn) -> Trace:
    """Of three families, and of each the outputs are known to be what longer prompts of it begin with."""
    num = draw(st.integers(4, 10))
    arrival_s = sorted(draw(st.lists(st.integers(0, 40), min_size=num, max_size=num)))
    prompts, outputs = (draw(st.lists(st.integers(1, most), min_size=num, max_size=num)) for most in (60, 40))
    texts = [[(family * 1000 + place, 1) for place in range(100)] for family in range(3)]
    rows = [texts[draw(st.integers(0, 2))] for _ in range(num)]
    trace = trace_of(arrival_s, prompts, outputs, segments=[row[:end] for row, end in zip(rows, prompts, strict=True)])
    ends = [row[first : first + more] for row, first, more in zip(rows, prompts, outputs, strict=True)]
    return replace(trace, output_segments=Ragged.of_segments(ends))


def by_ids_and_one_by_one(trace: Trace, chosen: Settings) -> Run:
    """Single steps take blocks one by one. What evictions cost, and whom, is the same, too."""
    ids, blocks = (simulate(trace, replace(chosen, spans=on)) for on in (True, False))
    assert isinstance(ids.scheduler.tables.pool, BatchPool)
    assert type(blocks.scheduler.tables) is BlockTables
    assert_equal(ids, blocks)
    assert_sound(ids)
    ours, theirs = ids.scheduler.tables.pool.attribution, blocks.scheduler.tables.pool.attribution
    assert ours is not None
    assert theirs is not None
    assert (ours.charges, ours.num_costly) == (theirs.charges, theirs.num_costly)
    return ids


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    trace=long_texts() | texts_that_go_on(),
    policy=st.sampled_from([*POLICIES]),
    num_more_blocks=st.integers(0, 60),
    max_num_seqs=st.integers(1, 5),
    budget=st.integers(10, 150),
    publication=st.sampled_from(["schedule", "schedule", "step_end"]),
)
def test_long_texts_are_kept_and_evicted_as_they_would_be_block_by_block(
    trace: Trace, policy: str, num_more_blocks: int, max_num_seqs: int, budget: int, publication: str
) -> None:
    largest = int((trace.num_prompt_tokens + trace.num_output_tokens).max())
    chosen = Settings(
        largest + num_more_blocks,
        block_size=1,
        max_num_seqs=max_num_seqs,
        budget=budget,
        eviction=POLICIES[policy],
        full_prompt=False,
        publication=publication,
    )
    by_ids_and_one_by_one(trace, chosen)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_text_computed_twice_at_once_is_evicted_twice(policy: str) -> None:
    """Each copy has a life of its own, and so have those that continue it."""
    text, other = [*range(30)], [*range(100, 140)]
    rows = [text, [*text, *range(50, 60)], other, text]
    trace = trace_of([0, 0, 20, 30], [len(row) for row in rows], [3] * 4, hash_ids=rows, hash_block_tokens=1)
    chosen = Settings(75, block_size=1, eviction=POLICIES[policy], publication="step_end")
    run = by_ids_and_one_by_one(trace, chosen)
    assert run.scheduler.tables.pool.num_evictions > 40


@pytest.mark.parametrize("policy", POLICIES)
def test_every_block_is_accounted_for_in_every_step(policy: str) -> None:
    """Few of four requests at a time fit the pool: they share beginnings, give way, and come back to their own text."""
    chosen = Settings(48, block_size=1, eviction=POLICIES[policy], full_prompt=False, budget=30)
    logs = []
    for by_ids in (True, False):
        bench = Bench(chosen)
        bench.scheduler = scheduler_of(chosen, by_ids=by_ids)
        for row, num_shared in enumerate([20, 12, 20, 5]):
            text = [*range(num_shared), *range(row * 100 + 100, row * 100 + 110)]
            bench.add(len(text), 15, HashKeys(row, text, 1, 1, len(text)))
        bench.drain()
        logs.append(bench.scheduler.log.rows().tolist())
        assert bench.decisions(Event.PREEMPT)
        assert bench.decisions(Event.EVICT)
    assert logs[0] == logs[1]


# ---- who has batches --------------------------------------------------------------------------------------------


class AlmostSieve(Sieve):
    """An order of its own, perhaps, and no word about batches."""


def test_a_subclass_and_other_parameters_are_asked_block_by_block() -> None:
    cases: list[tuple[Any, bool]] = [
        (Sieve, True),
        (AlmostSieve, False),
        (GDSF, True),
        (partial(GDSF, cost="recompute"), False),
    ]
    for eviction, is_by_ids in cases:
        tables = scheduler_of(Settings(10, eviction=eviction), by_ids=True).tables
        assert isinstance(tables, IdTables) == is_by_ids


def test_without_caching_no_policy_is_asked() -> None:
    assert isinstance(scheduler_of(Settings(10, eviction=AlmostSieve, caching=False), by_ids=True).tables, IdTables)


@pytest.mark.parametrize("eviction", [LRU, Sieve])
def test_a_preemption_policy_that_reads_tables_finds_blocks_in_them(eviction: Any) -> None:
    rows = [[1, 2, 3, 4]] * 3
    trace = trace_of([0, 0, 0], [8, 8, 8], [20, 20, 20], hash_ids=rows, hash_block_tokens=2)
    run = simulate(trace, Settings(16, block_size=2, preemption=CostBased, eviction=eviction))
    assert type(run.scheduler.tables) is BlockTables
    assert run.num_preemptions == 4


def test_s3fifo_turns_to_the_main_queue_as_soon_as_anything_is_in_it() -> None:
    """The small queue is short of its share: each block that moves on is the main queue's oldest, and goes at once."""
    one_by_one = S3FIFO(PolicyEnv(lambda: 0, 100, 1), small_ratio=0.9)
    batches = one_by_one.in_batches(np.arange(1, 101))
    blocks = [Block(number, key=number) for number in range(40)]
    one_by_one.on_insert(blocks)
    one_by_one.on_release(blocks)
    batches.enter(array("q", range(40)))
    batches.rest(np.arange(40))
    for _ in range(2):
        one_by_one.on_hit(blocks[5:15:3], readmission=False)
        batches.hit(np.arange(5, 15, 3))
    assert [block.block_id for block in one_by_one.pop_victims([None] * 20)] == [*range(20)]
    assert batches.choose(20, None).tolist() == [*range(20)]


def test_s3fifo_names_its_victims_before_its_main_queue_moves_in_memory() -> None:
    """All stay in the main queue, which comes to the end of its memory again and again."""
    num, hits = 200, np.array([number for number in range(200) if number % 3])
    one_by_one = S3FIFO(PolicyEnv(lambda: 0, num, 1), small_ratio=0.01, threshold=1)
    batches = one_by_one.in_batches(np.arange(1, num + 1))
    blocks = [Block(number, key=number + 1) for number in range(num)]
    victims = array("q", range(num))
    for _ in range(8):
        one_by_one.on_insert([blocks[number] for number in victims])
        one_by_one.on_release([blocks[number] for number in victims])
        batches.enter(victims)
        batches.rest(np.array(victims))
        one_by_one.on_hit([blocks[number] for number in hits], readmission=False)
        batches.hit(hits)
        victims = batches.choose(40, None)
        assert victims.tolist() == [block.block_id for block in one_by_one.pop_victims([None] * 40)]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    policy=st.sampled_from([*POLICIES]),
    spans=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 3)), min_size=2, max_size=12),
)
def test_what_is_foreseen_for_a_span_is_what_its_steps_would_choose(
    policy: str, spans: list[tuple[int, int, int]]
) -> None:
    """Each step takes a block and publishes it as soon; between spans some come to rest, and some are hit."""
    num, contents = 30, np.arange(1, 31)
    env = PolicyEnv(lambda: 0, num, 1)
    ahead, by_step = (POLICIES[policy](env).in_batches(contents) for _ in range(2))
    resting, awake = [*range(num)], [*range(0)]
    for each in (ahead, by_step):
        each.enter(array("q", resting))
        each.rest(np.arange(num))
    for num_steps, num_rest, num_hit in spans:
        num_steps = min(num_steps, len(resting))
        foreseen = ahead.foresee(num_steps).tolist()
        entering = array("q")
        for step in range(num_steps):
            [chosen] = by_step.choose(1, None)
            if step == len(foreseen):
                if entering:
                    ahead.enter(entering)
                entering = array("q")
                foreseen += ahead.choose(1, None)
            assert foreseen[step] == chosen
            contents[chosen] = 0
            resting.remove(chosen)
            awake.append(chosen)
            by_step.enter(array("q", [chosen]))
            entering.append(chosen)
        if entering:
            ahead.enter(entering)
        now_rest, now_hit = np.array(awake[:num_rest]), np.array(resting[:num_hit], dtype=np.int64)
        resting, awake = [*resting[num_hit:], *awake[:num_rest]], [*awake[num_rest:], *resting[:num_hit]]
        contents[now_rest[contents[now_rest] == 0]] = np.arange(np.sum(contents[now_rest] == 0)) + contents.max() + 1
        for each in (ahead, by_step):
            each.rest(now_rest)
            each.hit(now_hit)
            each.wake(now_hit)


def test_sieve_foresees_nothing_beyond_the_last_block_before_what_enters() -> None:
    """Where its hand comes to the end, what has entered until then lies ahead of it."""
    batches = Sieve(PolicyEnv(lambda: 0, 3, 1)).in_batches(np.arange(1, 4))
    batches.enter(array("q", range(3)))
    batches.rest(np.arange(3))
    assert batches.foresee(3).tolist() == [0, 1]


# ---- what they are made of --------------------------------------------------------------------------------------


class Asked(BatchEviction):
    """Evicts whoever rests, and remembers what it was told to make room for."""

    asks_incoming = True

    def __init__(self) -> None:
        self._resting: list[int] = []
        self.incoming: list[list[int] | None] = []

    def rest(self, ids: Ints) -> None:
        self._resting += ids.tolist()

    def choose(self, num_blocks: int, incoming: Ints | None) -> array[int]:
        self.incoming.append(None if incoming is None else incoming.tolist())
        return array("q", [self._resting.pop() for _ in range(num_blocks)])

    def foresee(self, num_blocks: int) -> array[int]:
        return array("q")

    def enter(self, ids: array[int]) -> None: ...
    def hit(self, ids: Ints) -> None: ...
    def wake(self, ids: Ints) -> None: ...
    def dropped(self, ids: array[int]) -> None: ...


def test_victims_are_told_of_what_comes_into_their_own_places() -> None:
    """Of four blocks one is free: a text's first goes there, its second is known, its third is not yet."""
    eviction, index = Asked(), BatchIndex(4)
    pool = BatchPool(4, eviction, index, DecisionLog())
    before, text = (index.text(HashKeys(owner, ids, 1, 1, 3)) for owner, ids in ((0, [1, 2, 3]), (1, [4, 5, 6])))
    table = pool.take(3, 0, before, 0, 3)
    pool.register(before, 0, table, 0)
    pool.release(table, 3, before, 0)
    pool.take(3, 1, text, 0, 2)
    assert eviction.incoming == [[text.number(1), 0]]


def test_a_line_moves_its_ids_to_the_front_of_its_memory_when_it_comes_to_the_end() -> None:
    line = IdLine()
    for first in range(0, 2000, 100):
        line.append(np.arange(first, first + 100))
        assert line.first(50).tolist() == [*range(first, first + 50)]
        line.drop(50)
        line.remove(array("q", range(first + 50, first + 99)))
        assert [line.pop() for _ in range(line.length)] == [first + 99]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    most=st.integers(1, 25),
    calls=st.lists(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=20), max_size=12),
)
@example(most=1, calls=[[(6, 10)], [(3, 7), (7, 5)]])  # 7 comes back for 3, and is evicted itself after it
def test_ghosts_by_the_dozen_are_those_that_come_one_by_one(most: int, calls: list[list[tuple[int, int]]]) -> None:
    """What was made room for comes after each call, and is a ghost no more."""
    ours, theirs = GhostBatches(most), Ghosts(most)
    for call in calls:
        numbers, incoming = (np.array(column, dtype=np.int64) for column in zip(*call, strict=True))
        ours.add(numbers, incoming if incoming.any() else None)
        for number, coming in call:
            theirs.add(number, coming or None)
        come = np.unique(incoming)
        picked = ours.pick(come)
        assert ([] if picked is None else come[picked].tolist()) == [key for key in come.tolist() if key in theirs]
        for key in come.tolist():
            theirs.discard(key)
    everything = np.arange(41)
    picked = ours.pick(everything)
    assert ([] if picked is None else everything[picked].tolist()) == [key for key in range(41) if key in theirs]


def test_who_leaves_an_order_and_comes_back_has_its_new_place_alone() -> None:
    order, victims = BatchOrder(3), array("q")
    order.put(np.array([0, 1]), np.array([5, 5]))
    order.discard(np.array([1]))
    order.put(np.array([1, 2]), np.array([7, 7]))
    assert [order.pop(num, victims) for num in (1, 2, 3)] == [5, 7, 7]
    assert victims.tolist() == [0, 1, 2]


def test_an_order_forgets_who_left_it_early() -> None:
    """Five thousand of nine scores come, four of five leave, and some come back: by score they go, then by coming."""
    ours, theirs = BatchOrder(5000), PriorityOrder()
    blocks = [Block(number) for number in range(5000)]

    def put(numbers: range, score: int) -> None:
        ours.put(np.array(numbers), np.array([score + number % 9 for number in numbers]))
        theirs.put([blocks[number] for number in numbers], [score + number % 9 for number in numbers])

    put(range(5000), 3)
    for part in range(1, 5):
        ours.discard(np.arange(part, 5000, 5))
        theirs.discard([blocks[number] for number in range(part, 5000, 5)])
    put(range(1, 5000, 15), 1)
    victims = array("q")
    scores: list[int] = []
    while len(victims) < 1334:
        scores.append(ours.pop(1334, victims))
    assert scores == sorted(scores)
    assert victims.tolist() == [theirs.pop().block_id for _ in range(1334)]
