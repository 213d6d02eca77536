"""Layers of different windows have a block table each: what leaves a window is freed; each hits by its own rule."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spans import assert_equal
from workloads import Workload, workloads
from world import Bench, Run, Settings, check_integrity, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.interfaces import Block, PolicyEnv, PriorityEviction
from core.kv_group import KVGroup, split_layers
from core.request import Outcome, Status
from core.servable import peak_blocks
from policies.batching import Orca, Static

FULL = KVGroup(10)
WINDOW = KVGroup(10, window_tokens=32)


@pytest.mark.parametrize(
    ("num_window", "num_full", "sizes"),
    [(30, 10, [10, 10, 10, 10]), (13, 12, [12, 13]), (29, 20, [20, 29]), (30, 20, [20, 20, 10]), (6, 0, [6])],
)
def test_layers_are_grouped_as_vllm_groups_them(num_window: int, num_full: int, sizes: list[int]) -> None:
    """By the rarest kind, or the most frequent if it has less than half as many again (vLLM 0.33.0)."""
    groups = split_layers([32] * num_window + [None] * num_full)
    assert [len(layers) for layers in groups] == sizes


def num_blocks_per_group(bench: Bench) -> list[int]:
    (request,) = bench.scheduler.running
    return [sum(block is not None for block in table) for table in request.live[0].tables]


def test_37_window_layers_keep_their_window() -> None:
    """Ten full and twenty window layers (two groups), window 32, blocks of 16, 112 tokens: 7 + 2 + 2 blocks, not 21."""
    bench = Bench(Settings(40, budget=16, groups=(FULL, WINDOW, WINDOW), caching=False))
    bench.add(112, 3)
    bench.steps(8)  # seven chunks of a block each, and the first decode step, which sees the last 31 tokens and its own
    assert num_blocks_per_group(bench) == [8, 3, 3], "its own token opened a block in each"
    bench.drain()

    bench = Bench(Settings(40, budget=16, groups=(FULL, WINDOW, WINDOW), caching=False))
    bench.add(111, 3)
    bench.steps(8)
    assert num_blocks_per_group(bench) == [7, 2, 2]


def referenced_blocks(run: Run) -> list[int]:
    """Blocks in use while each step ran."""
    return run.step_arrays()["num_referenced_blocks"].tolist()


def num_seen_blocks(group: KVGroup, first: int, last: int) -> int:
    """Blocks of 16 that positions `first` to `last` attend to, by the definition: each sees itself and those before."""
    first_seen = 0 if group.window_tokens is None else max(0, first - group.window_tokens + 1)
    return len({position // 16 for position in range(first_seen, last + 1)})


@pytest.mark.parametrize("groups", [(FULL, WINDOW), (FULL, WINDOW, WINDOW), (WINDOW,), (KVGroup(1, 1), KVGroup(1, 33))])
def test_every_length_holds_what_its_newest_token_attends_to(groups: tuple[KVGroup, ...]) -> None:
    run = simulate(trace_of([0], [1], [150]), Settings(None, groups=groups))
    assert referenced_blocks(run) == [sum(num_seen_blocks(group, n, n) for group in groups) for n in range(150)]


def test_every_chunk_holds_what_its_first_token_attends_to() -> None:
    """100 prompt tokens, 16 a step, a window of 20: the third chunk's first token, at position 32, sees back to 13."""
    run = simulate(trace_of([0], [100], [1]), Settings(None, groups=(KVGroup(1, 20),), budget=16))
    expected = [num_seen_blocks(KVGroup(1, 20), first, min(first + 15, 99)) for first in range(0, 100, 16)]
    assert referenced_blocks(run) == expected == [1, 2, 3, 3, 3, 3, 3]


@pytest.mark.parametrize(
    ("num_computed", "num_expired"), [(0, 0), (32, 0), (46, 0), (47, 1), (62, 1), (63, 2), (112, 5)]
)
def test_a_block_expires_when_no_later_token_sees_it(num_computed: int, num_expired: int) -> None:
    """The query at position 47 sees positions 16 to 47: block 0 is done with."""
    assert WINDOW.num_expired_blocks(num_computed, 16) == num_expired
    assert FULL.num_expired_blocks(num_computed, 16) == 0


def test_expired_blocks_serve_others_and_are_named_in_the_plan() -> None:
    bench = Bench(Settings(40, block_size=4, groups=(KVGroup(1, window_tokens=8),), caching=False))
    bench.add(8, 20)
    freed = []
    for _ in range(12):
        plan = bench.step()
        assert plan is not None
        freed += plan.window_frees
    assert len(freed) == 2, "before the twelfth step 18 tokens have KV, and the next one sees the last 8 of 19"
    assert num_blocks_per_group(bench) == [3]
    bench.drain()
    assert len(bench.pool.blocks) <= 4, "a window of two blocks goes on for ever in four"


def test_a_window_of_one_token_leaves_a_block_with_the_step_that_fills_it() -> None:
    """Five prompt tokens, blocks of 4, published at step ends: step 4 fills the window's second, which goes."""
    chosen = Settings(6, block_size=4, groups=(KVGroup(1), KVGroup(1, window_tokens=1)), publication="step_end")
    happened = simulate(trace_of([0], [5], [6]), chosen).decisions(Event.CACHE, Event.FREE)
    assert happened[:3] == [(0, "CACHE", 0, 0), (0, "CACHE", 0, 2), (1, "FREE", 0, 2)]
    assert happened[3:6] == [(4, "CACHE", 0, 1), (4, "CACHE", 0, 3), (4, "FREE", 0, 3)]


@pytest.mark.parametrize(
    ("present", "full_hit", "window_hit"),
    [
        ([True] * 6, 6, 6),
        ([True, True, False, True, True, True], 2, 6),  # the window of 8 sees blocks 4 and 5
        ([False] * 4 + [True, True], 0, 6),
        ([True, True, True, True, False, True], 4, 4),
        ([False, True, False, True, False, True], 0, 0),
    ],
)
def test_each_group_has_its_own_rule_of_a_hit(present: list[bool], full_hit: int, window_hit: int) -> None:
    """Blocks of 4, window of 8: after k blocks the next token sees the last 7 before it, in two blocks."""
    assert KVGroup(1).num_hit_blocks(present, 4) == full_hit
    assert KVGroup(1, window_tokens=8).num_hit_blocks(present, 4) == window_hit


def test_a_hit_is_the_most_that_all_groups_agree_on() -> None:
    bench = Bench(Settings(60, block_size=4, groups=(KVGroup(1), KVGroup(1, window_tokens=8))))
    bench.add(24, 1, TokenKeys(0, range(24), 4, 24))
    bench.drain()
    again = bench.add(25, 2, TokenKeys(1, range(25), 4, 25))
    hit = bench.scheduler.tables.find_prefix(again.live[0])
    assert hit.num_tokens == 24
    assert [block is not None for block in hit.tables[1]] == [False] * 4 + [True, True], "expired positions stay empty"

    index = bench.pool.index
    index_of_window = index.get((1, again.keys.key(4)))
    assert index_of_window is not None
    bench.pool.take(bench.pool.num_free, 9)
    while index.get((1, again.keys.key(4))) is not None:  # evict until block 4 is gone from the window's group
        bench.pool.take(1, 9)
    shorter = bench.scheduler.tables.find_prefix(again.live[0]).num_tokens
    assert shorter < 24
    assert shorter == 0 or index.get(again.keys.key(shorter // 4 - 1)) is not None


def test_a_hit_on_windows_decodes_on() -> None:
    bench = Bench(Settings(60, block_size=4, groups=(KVGroup(1), KVGroup(1, window_tokens=8))))
    for owner in range(3):
        request = bench.add(25, 10, TokenKeys(owner, range(25), 4, 25))
        bench.drain()
        assert request.outcome is Outcome.FINISHED
        assert request.num_cached_tokens == (24 if owner else 0)


def test_a_long_text_fits_where_its_windows_fit() -> None:
    """A thousand tokens in a pool of six blocks of 16; with a full group as well they never could."""
    chosen = Settings(6, budget=16, groups=(KVGroup(1, window_tokens=32),))
    bench = Bench(chosen)
    request = bench.add(1000, 10)
    assert peak_blocks(request, bench.scheduler.tables, 10) == 4
    bench.drain()
    assert request.outcome is Outcome.FINISHED
    both = Bench(Settings(6, budget=16, groups=(FULL, WINDOW)))
    assert both.add(1000, 10).outcome is Outcome.REJECTED


@pytest.mark.parametrize("batching", [Orca, Static])
def test_a_prompt_that_must_be_computed_whole_must_fit_whole(batching: Any) -> None:
    """32 tokens, window 8, blocks of 4: in chunks of 8 they take five blocks at most, in one step all nine."""
    windowed = Settings(6, block_size=4, budget=8, full_prompt=False, groups=(KVGroup(1, window_tokens=8),))
    trace = trace_of([0, 1, 2], [32, 4, 24], [2, 2, 1])
    run = simulate(trace, replace(windowed, batching=batching))
    assert [request.reject_reason for request in run.requests()] == ["needs 9 blocks, the pool has 6", "", ""]
    assert [request.outcome for request in run.requests()[1:]] == [Outcome.FINISHED] * 2
    chunked = simulate(trace, windowed)
    assert [request.outcome for request in chunked.requests()] == [Outcome.FINISHED] * 3


class Forgets(PriorityEviction):
    """Evicts the blocks of these keys before all others. Group 0 uses the trace's ids, group 1 pairs (1, id)."""

    def __init__(self, env: PolicyEnv, keys: frozenset[Hashable]) -> None:
        super().__init__(env)
        self._keys = keys

    def priority(self, block: Block) -> float:
        return float(block.key not in self._keys)


CHAIN = [10, 11, 12, 13, 14, 15, 16]  # ids of seven full blocks


@pytest.mark.parametrize(
    ("forgotten", "hit_tokens"),
    [
        ([(1, 10)], 112),  # the window has left its root behind
        ([(1, 14)], 112),
        ([(1, 15)], 80),  # 112 and 96 tokens need it; 80 need blocks 13 and 14
        ([(1, 16)], 96),
        ([10], 0),  # full attention needs its root
        ([13], 48),
        ([16], 96),
        ([15, (1, 14)], 64),  # full allows 80, for which the window lacks block 14: both agree on 64
        ([12, (1, 11)], 16),  # full allows 32, the window has only block 10 of those
    ],
)
def test_a_hit_lost_in_one_group_is_lost_to_all(forgotten: list[Hashable], hit_tokens: int) -> None:
    """A prompt, a filler whose blocks make the pool forget just these, and the prompt once more."""
    ids = [[*CHAIN, 90], [91, 92], [*CHAIN, 93]]
    trace = trace_of([0, 10, 20], [113, 17, 113], [1, 1, 1], ids, hash_block_tokens=16)
    num_blocks = 2 * 8 + 2 - len(forgotten)  # the filler's four take the two partial ones and what is not forgotten
    eviction = partial(Forgets, keys=frozenset(forgotten))
    run = simulate(trace, Settings(num_blocks, groups=(FULL, WINDOW), eviction=eviction))
    assert sum(step == 1 for step, *_ in run.decisions(Event.EVICT)) == len(forgotten)
    assert [request.num_cached_tokens for request in run.requests()] == [0, 0, hit_tokens]


def test_groups_agree_in_any_order() -> None:
    """The window, asked first, allows seven blocks; full attention then five; for five the window lacks block 14."""
    ids = [[*CHAIN, 90], [91, 92], [*CHAIN, 93]]
    trace = trace_of([0, 10, 20], [113, 17, 113], [1, 1, 1], ids, hash_block_tokens=16)
    eviction = partial(Forgets, keys=frozenset([14, (1, 15)]))
    run = simulate(trace, Settings(16, groups=(WINDOW, FULL), eviction=eviction))
    assert run.request(2).num_cached_tokens == 64


def test_groups_and_salts_do_not_meet() -> None:
    """The same prompt without a salt, then twice with salt 1: the last finds its own tenant's blocks in each group."""
    trace = trace_of([0, 10, 20], [33] * 3, [1] * 3, [[1, 2, 3]] * 3, hash_block_tokens=16, hash_salt=[0, 1, 1])
    run = simulate(trace, Settings(num_blocks=64, groups=(FULL, FULL)))
    assert [request.num_cached_tokens for request in run.requests()] == [0, 0, 32]
    registered = [block for _, _, owner, block in run.decisions(Event.CACHE) if owner == 1]
    touched = [block for _, _, owner, block in run.decisions(Event.TOUCH) if owner == 2]
    assert sorted(touched) == sorted(registered)


def test_a_preempted_request_comes_back_with_all_its_groups() -> None:
    """Two requests outgrow the pool. The younger gives up both tables, and later finds what is left of them."""
    bench = Bench(Settings(num_blocks=14, groups=(FULL, WINDOW), budget=64))
    elder, victim = bench.add(48, 60), bench.add(48, 60)
    while victim.status is not Status.PREEMPTED:
        bench.step()
    num_had_kv = victim.sequences[0].num_had_kv
    assert victim.sequences[0].tables == [[], []]
    while victim.status is Status.PREEMPTED:
        bench.step()
    hit = victim.num_readmission_cached_tokens
    assert hit > 0
    assert victim.num_recomputed_tokens == num_had_kv - hit, "in one chunk: the budget is wide enough"
    full, windowed = victim.live[0].tables
    assert len(full) == len(windowed)
    num_expired = WINDOW.num_expired_blocks(hit, 16)
    assert [block is None for block in windowed] == [index < num_expired for index in range(len(windowed))]
    bench.drain()
    assert [request.num_produced_tokens for request in (elder, victim)] == [60, 60]
    assert bench.pool.num_referenced == 0


SMALL_WINDOW = (KVGroup(1), KVGroup(1, window_tokens=8))


def test_samples_that_come_back_find_the_window_that_their_lead_has_left() -> None:
    """Two samples of nine prompt tokens are preempted late and computed again: the first may be far beyond the prompt
    when the second starts where the prompt ends."""
    bench = Bench(Settings(16, block_size=4, groups=SMALL_WINDOW, budget=64, full_prompt=False))
    bench.add(4, 10)
    request = bench.add(9, 10, TokenKeys(1, range(9), 4, 9), num_samples=2)
    bench.drain()
    assert request.num_preemptions > 0
    assert request.num_produced_tokens == 20


def test_a_swapped_text_that_lost_a_shared_block_goes_back_as_far_as_its_windows_allow() -> None:
    """Two share 24 tokens. One is swapped out far beyond them, the other ends, and the pool forgets one shared block:
    up to there full attention could go on, but the window's blocks were given up long ago."""
    chosen = Settings(42, block_size=4, groups=SMALL_WINDOW, full_prompt=False, mode="swap", host_blocks=100)
    bench = Bench(chosen)
    bench.add(5, 60)
    other = bench.add(25, 60, TokenKeys(0, [*range(24), *range(100, 200)], 4, 25))
    victim = bench.add(25, 60, TokenKeys(1, [*range(24), *range(200, 300)], 4, 25))
    bench.steps(34)
    assert victim.swapped is not None
    assert victim.swapped.num_computed == [56]
    bench.cancel(other)
    key, taken = victim.live[0].keys.key(5), []
    while bench.pool.index.get(key) is not None:
        taken += bench.pool.take(1, 9)
    bench.pool.release(taken, 9)
    assert bench.pool.index.get(victim.live[0].keys.key(4)) is not None, "five of the shared blocks are still there"
    assert bench.scheduler.tables.swapping.find(victim).num_computed == [0]
    bench.drain()
    assert victim.outcome is Outcome.FINISHED


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_windows_under_pressure(data: st.DataObject) -> None:
    """Random loads on a full and a window group, pools that preempt, both modes: nothing is lost, all get done."""
    block_size = data.draw(st.integers(1, 4))
    num = data.draw(st.integers(1, 5))
    prompts = data.draw(st.lists(st.integers(1, 20), min_size=num, max_size=num))
    outputs = data.draw(st.lists(st.integers(1, 12), min_size=num, max_size=num))
    window = data.draw(st.integers(1, 12))
    largest = -(-max(p + o - 1 for p, o in zip(prompts, outputs, strict=True)) // block_size)
    chosen = Settings(
        2 * largest + data.draw(st.integers(0, 4)),
        block_size=block_size,
        budget=data.draw(st.integers(2, 24)),
        caching=data.draw(st.booleans()),
        mode=data.draw(st.sampled_from(["recompute", "swap"])),
        host_blocks=100,
        groups=(KVGroup(1), KVGroup(1, window_tokens=window)),
    )
    starts = data.draw(st.lists(st.sampled_from([0, 100]), min_size=num, max_size=num))
    bench = Bench(chosen)
    requests = [
        bench.add(p, o, TokenKeys(row, range(start, start + p), block_size, p))
        for row, (start, p, o) in enumerate(zip(starts, prompts, outputs, strict=True))
    ]
    bench.drain(at_most=2_000)
    assert [request.num_produced_tokens for request in requests] == outputs
    assert bench.pool.num_referenced == 0
    check_integrity(bench.scheduler)


GROUPS = [(FULL, FULL), (FULL, KVGroup(1, 5)), (KVGroup(1, 9), FULL, KVGroup(1, 2)), (KVGroup(1, 3),), (KVGroup(1, 1),)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(workload=workloads(), groups=st.sampled_from(GROUPS))
def test_any_mix_of_groups_survives_any_crowd(workload: Workload, groups: tuple[KVGroup, ...]) -> None:
    """Cancellations, samples, swaps, priorities: everybody's fate is told and nothing leaks, with spans or without."""
    assert workload.settings.num_blocks is not None
    chosen = replace(workload.settings, groups=groups, num_blocks=workload.settings.num_blocks * len(groups))
    if groups != (FULL, FULL):
        chosen = replace(chosen, leaf_first=False)  # refused where a window moves
    runs = []
    for spans in (True, False):
        settings = replace(chosen, spans=spans)
        run = simulate(workload.trace, settings, workload.cost, workload.arrivals, workload.concurrency)
        check_integrity(run.scheduler)
        assert all(request.outcome is not Outcome.UNFINISHED for request in run.requests())
        assert run.scheduler.tables.pool.num_referenced == 0
        runs.append(run)
    assert_equal(*runs)
