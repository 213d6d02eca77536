"""Allocation policies in the scheduler: what they hold, whom they refuse, what they move."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_spans import assert_equal, assert_sound
from test_waste import assert_as_counted, waste_of
from workloads import Workload, workloads
from world import Bench, Run, Settings, simulate, trace_of

from core.decision_log import Event
from core.errors import InputError
from core.interfaces import AllocationPolicy, PolicyEnv
from core.kv_group import KVGroup
from core.model_shape import ModelShape
from core.request import Outcome, Request
from policies.allocation.contiguous_max import ContiguousMax
from policies.allocation.orca_oracle import OrcaOracle
from policies.allocation.orca_pow2 import OrcaPow2
from policies.allocation.page_group import PageGroup
from policies.allocation.reallocating import Reallocating
from policies.allocation.token_granular import TokenGranular
from sim.linear_cost import LinearCost

FirstFit = partial(OrcaOracle, placement="first_fit")
Compacting = partial(OrcaOracle, placement="first_fit", compaction=True)
LLAMA_3_8B = ModelShape(
    name="llama3_8b",
    num_layers=32,
    hidden=4096,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab_size=128256,
    max_context_tokens=8192,
)


def slots(num_blocks: int, allocation: Any, **others: Any) -> Settings:
    """A pool of blocks of one token."""
    return Settings(num_blocks, block_size=1, caching=False, allocation=allocation, **others)


def table_of(request: Request) -> list[int]:
    return [block.block_id for block in request.live[0].tables[0]]


# ---- scenario 4 -----------------------------------------------------------------------------------------------------


def four(allocation: Any) -> tuple[Bench, list[Request]]:
    """A and C, of 4 and 3 cells, end after the first step; B's 3 cells stay for another. D wants 5."""
    bench = Bench(slots(10, allocation))
    first = [bench.add(4, 1), bench.add(2, 2), bench.add(3, 1)]
    bench.step()
    return bench, [*first, bench.add(5, 1)]


def test_4_first_fit_refuses_what_no_hole_holds() -> None:
    """Seven cells are free, and the largest hole has four."""
    bench, (*_, b, _, d) = four(FirstFit)
    assert table_of(b) == [4, 5, 6]
    with bench.in_step() as plan:
        assert plan is not None
        assert (bench.pool.num_available, plan.blocked, plan.admitted) == (7, [d], [])
        recorder = bench.scheduler.recorder
        external = recorder.step_external_tokens.expand(recorder.num_steps_begun)
        assert external[-1] == 7, "free, and of no use to the head of the queue"
    with bench.in_step() as plan:
        assert plan is not None
        assert plan.admitted == [d], "B has gone"
        assert table_of(d) == [0, 1, 2, 3, 4]


def test_4_compaction_moves_b() -> None:
    bench, (*_, b, _, d) = four(Compacting)
    with bench.in_step() as plan:
        assert plan is not None
        assert plan.admitted == [d]
        assert plan.moves == {0: 4, 1: 5, 2: 6}, "target: source"
        assert (table_of(b), table_of(d)) == ([0, 1, 2], [3, 4, 5, 6, 7])
    bench.drain()
    assert bench.scheduler.recorder.moved_blocks == {1: 3}


def test_4_paged_blocks_of_one_token_need_no_move() -> None:
    bench, (*_, d) = four(TokenGranular)
    with bench.in_step() as plan:
        assert plan is not None
        assert plan.admitted == [d]
        assert not plan.moves
    assert len(bench.decisions(Event.MOVE)) == 0


# ---- what each of them reserves -------------------------------------------------------------------------------------


def target(
    policy: type[AllocationPolicy], num_prompt: int, num_output: int, num_tokens: int = 1, **options: Any
) -> int:
    request = Bench(slots(5000, TokenGranular)).request(num_prompt, num_output)
    block_size = options.pop("block_size", 1)
    return policy(PolicyEnv(lambda: 0, 5000, block_size), **options).target_blocks(request, num_tokens)


def test_reservations() -> None:
    assert target(ContiguousMax, 7, 3) == 2048
    assert target(ContiguousMax, 7, 3, block_size=16) == 128
    assert [target(OrcaPow2, 100, o) for o in (1, 2, 3, 25, 32, 33)] == [101, 102, 104, 132, 132, 164]
    assert target(OrcaOracle, 100, 25) == 124, "the last token never has KV"
    assert target(OrcaOracle, 100, 25, block_size=16) == 8


def test_a_run_that_is_full_doubles() -> None:
    assert [target(Reallocating, 10, 90, n) for n in (1, 10, 11, 20, 21, 41, 99)] == [10, 10, 20, 20, 40, 80, 160]
    assert [target(Reallocating, 10, 90, n, growth_factor=1) for n in (1, 10, 11, 99)] == [10, 10, 11, 99]
    assert [target(Reallocating, 3, 90, n, growth_factor=1.2) for n in (3, 4, 5, 6)] == [3, 4, 5, 6], "a block at least"


def test_cv_34_page_groups_of_vattention() -> None:
    """Llama-3-8B: 32 tokens in pages of 64 KiB, 1,024 in pages of 2 MiB; 64 pages a step of growth: 4 and 128 MiB."""
    env = PolicyEnv(lambda: 0, 5000, 16)
    for page_bytes, num_tokens, growth_mib in ((65_536, 32, 4), (2_097_152, 1024, 128)):
        policy = PageGroup(env, LLAMA_3_8B, page_bytes)
        assert (policy.tokens_per_page, policy.num_pages_per_growth) == (num_tokens, 64)
        assert policy.num_pages_per_growth * page_bytes == growth_mib * 2**20
        assert policy.num_pages_per_growth * page_bytes == num_tokens * LLAMA_3_8B.kv_bytes_per_token()
    request = Bench(slots(50, TokenGranular)).request(1000, 100)
    assert [policy.target_blocks(request, n) for n in (1, 1024, 1025)] == [64, 64, 128]


def test_a_page_group_is_taken_at_once_and_its_rest_is_waste() -> None:
    """Pages of 32 tokens, blocks of 8: 30 prompt tokens and 6 outputs, so 35 with KV, in 8 blocks at the end."""
    allocation = partial(PageGroup, model=LLAMA_3_8B, page_bytes=65_536)
    run = both(trace_of([0], [30], [6]), Settings(8, block_size=8, caching=False, allocation=allocation))
    assert run.step_arrays()["num_referenced_blocks"].tolist() == [4, 4, 4, 8, 8, 8]
    assert waste_of(run) == [(2, 0, 0), (1, 0, 0), (0, 0, 0), (2, 29, 0), (1, 29, 0), (0, 29, 0)]
    assert run.num_plans == 3, "the prompt, two decodes, and three with the next page"


def both(trace: Any, chosen: Settings, **options: Any) -> Run:
    spans, steps = (simulate(trace, replace(chosen, spans=on), **options) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)
    return spans


def test_waste_of_a_reservation() -> None:
    """Pow2 by buddies, slots of one token: 5 prompt tokens and 3 outputs reserve 5 + 4, rounded up to 16.

    7 of the 9 get KV: at first 5 hold it and 2 are reserved. Two are never used, the other 7 of the 16 are padding.
    """
    run = both(trace_of([0], [5], [3]), slots(16, OrcaPow2))
    assert waste_of(run) == [(2, 2, 7), (1, 2, 7), (0, 2, 7)]
    assert run.num_plans == 2, "one span after the prompt"


def test_free_slots_count_as_waste_only_while_somebody_is_refused() -> None:
    """20 slots, runs of 12: the second request waits for the first, beside 8 free slots."""
    run = both(
        trace_of([0, 1], [10, 10], [3, 3]), slots(20, partial(ContiguousMax, max_seq_tokens=12, placement="first_fit"))
    )
    assert [external for *_, external in waste_of(run)] == [0, 8, 8, 0, 0, 0]


# ---- growth by copying ----------------------------------------------------------------------------------------------


def test_a_sequence_that_outgrows_its_run_is_copied_into_a_longer_one() -> None:
    """Two tokens, then 4, then 8 slots: copies of 2 and of 4."""
    bench = Bench(slots(20, Reallocating))
    request = bench.add(2, 6)
    tables, moves = [], []
    for _ in range(5):
        with bench.in_step() as plan:
            assert plan is not None
            tables.append(table_of(request))
            moves.append(plan.moves)
    assert tables == [[0, 1], [2, 3, 4, 5], [2, 3, 4, 5], [*range(6, 14)], [*range(6, 14)]]
    assert moves == [{}, {2: 0, 3: 1}, {}, {6: 2, 7: 3, 8: 4, 9: 5}, {}]


def test_both_runs_exist_while_the_copy_is_made() -> None:
    """11 slots hold runs of 4 and 8 only one after the other: the request gives way to itself, and computes again."""
    run = both(trace_of([0], [4], [4]), slots(11, Reallocating))
    assert (run.request(0).num_preemptions, run.request(0).outcome) == (1, Outcome.FINISHED)
    assert run.num_prefill_tokens == 4 + 5
    assert both(trace_of([0], [4], [4]), slots(12, Reallocating)).num_preemptions == 0


def test_copies_are_paid_for() -> None:
    cost = LinearCost(1.0, copy_block_s=0.25)
    run = both(trace_of([0], [2], [6]), slots(20, Reallocating), cost=cost)
    assert run.step_arrays()["duration_s"].tolist() == [1, 1.5, 1, 2, 1, 1]
    assert run.step_arrays()["num_moved_blocks"].tolist() == [0, 2, 0, 4, 0, 0]


def test_a_run_that_moves_twice_in_a_step_is_copied_once() -> None:
    """14 slots. A's 2 stand behind a hole of 3, and B's 4 behind them. A outgrows its run and needs 4: the holes of 3
    and 5 become one by B's sliding down after A's own run; then A goes to its end.
    """
    bench = Bench(slots(14, partial(Reallocating, compaction=True)))
    gone, a, b = bench.add(3, 1), bench.add(2, 4), bench.add(4, 2)
    bench.step()
    assert [table_of(a), table_of(b)] == [[3, 4], [5, 6, 7, 8]]
    with bench.in_step() as plan:
        assert plan is not None
        assert not gone.live
        assert [plan.moves[block] for block in table_of(a)[:2]] == [3, 4], "whatever lay between"
        assert len(set(table_of(a)) & set(table_of(b))) == 0
    bench.drain()


# ---- who is turned away ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocation", "num_prompt", "num_output", "samples", "reason"),
    [
        (partial(ContiguousMax, max_seq_tokens=8), 6, 4, 1, "has 9 tokens to keep, its reservation .* is 8"),
        (partial(ContiguousMax, max_seq_tokens=40), 6, 4, 1, "needs a run of 40 blocks, .* has 16"),
        (OrcaOracle, 17, 1, 1, "needs a run of 17 blocks, .* has 16"),
        (FirstFit, 21, 1, 1, "needs a run of 21 blocks, .* has 20"),
        (OrcaPow2, 3, 2, 2, "wants 2 samples, which cannot share blocks"),
        (Reallocating, 11, 3, 1, "needs a run of 22 blocks"),
    ],
)
def test_what_can_never_be_placed_ends_at_once(
    allocation: Any, num_prompt: int, num_output: int, samples: int, reason: str
) -> None:
    bench = Bench(slots(20, allocation))
    request = bench.add(num_prompt, num_output, num_samples=samples)
    assert request.outcome is Outcome.REJECTED
    assert re.match(reason, request.reject_reason), request.reject_reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"caching": True}, "scheduler.prefix_caching=true: .* expected false"),
        ({"host_blocks": 4}, "pool.host_blocks=4: .* cannot swap; expected 0"),
        ({"num_blocks": None}, "pool.num_blocks=unbounded: .* expected a number"),
        ({"groups": (KVGroup(1), KVGroup(1, 32))}, "expected full attention only"),
        ({"allocation": partial(OrcaOracle, placement="worst")}, "placement=worst: expected one of first_fit, best"),
        ({"allocation": partial(OrcaOracle, compaction=True)}, "compaction=true: not with placement=buddy"),
        ({"allocation": partial(ContiguousMax, max_seq_tokens=0)}, "max_seq_tokens=0: expected"),
        ({"allocation": partial(Reallocating, growth_factor=0.5)}, "growth_factor=0.5: expected a number from 1 on"),
        ({"allocation": TokenGranular, "block_size": 16}, "expected pool.block_size_tokens=1"),
        ({"allocation": partial(PageGroup, model=LLAMA_3_8B, page_bytes=4096)}, "page_bytes=4096: expected one of"),
    ],
)
def test_what_contiguous_allocation_cannot_do(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Bench(replace(slots(20, OrcaOracle), **change))


# ---- at random ------------------------------------------------------------------------------------------------------

ALL = [
    partial(ContiguousMax, max_seq_tokens=39, placement="first_fit"),
    OrcaPow2,
    OrcaOracle,
    FirstFit,
    Compacting,
    partial(OrcaOracle, placement="best_fit", compaction=True),
    Reallocating,
    partial(Reallocating, growth_factor=1, placement="best_fit", compaction=True),
    partial(Reallocating, growth_factor=1.5, placement="buddy"),
    partial(PageGroup, model=replace(LLAMA_3_8B, num_kv_heads=32, head_dim=256, num_layers=8), page_bytes=65_536),
]


@st.composite
def crowded(draw: st.DrawFn) -> Workload:
    """Any workload, in a pool up to three times as large, under any policy that shares nothing."""
    workload = draw(workloads())
    chosen = replace(
        workload.settings,
        num_blocks=(workload.settings.num_blocks or 1) * draw(st.integers(1, 3)),
        caching=False,
        host_blocks=0,
        allocation=draw(st.sampled_from(ALL)),
    )
    return replace(workload, settings=chosen)


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=crowded())
def test_spans_and_single_steps_are_the_same_run(workload: Workload) -> None:
    spans, steps = (workload.run(replace(workload.settings, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=crowded())
def test_waste_is_as_counted_block_by_block(workload: Workload) -> None:
    assert_as_counted(workload, workload.settings)
