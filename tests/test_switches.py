"""Switches in which engines differ: each changes what it says, and only that. Spans are exact under every one."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from test_spans import assert_equal, assert_sound
from world import Bench, Run, Settings, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.request import Outcome
from core.units import PS_PER_S
from policies.admission.reservation import Reservation
from policies.preemption.strict_priority import StrictPriority
from traces.schema import Trace


def run_of(trace: Trace, settings: Settings) -> Run:
    """With spans; the same as with single steps."""
    spans, steps = (simulate(trace, replace(settings, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)
    return spans


@pytest.mark.parametrize(("publication", "hit"), [("schedule", 8), ("step_end", 0)])
def test_publication_decides_what_the_same_step_can_hit(publication: str, hit: int) -> None:
    bench = Bench(Settings(20, block_size=4, publication=publication))
    first, second = (bench.add(9, 2, TokenKeys(owner, range(9), 4, 9)) for owner in (0, 1))
    bench.step()
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, hit)
    third = bench.add(9, 2, TokenKeys(2, range(9), 4, 9))
    bench.drain()
    assert third.num_cached_tokens == 8, "the step after it can, either way"


@pytest.mark.parametrize(("publication", "step"), [("schedule", 3), ("step_end", 4)])
def test_what_decodes_fill_is_published_when_scheduled_or_with_the_next_step(publication: str, step: int) -> None:
    """Five prompt tokens; the eighth is scheduled at step 3, and fills the second block."""
    run = run_of(trace_of([0], [5], [9]), Settings(20, block_size=4, publication=publication))
    assert run.decisions(Event.CACHE) == [(0, "CACHE", 0, 0), (step, "CACHE", 0, 1), (step + 4, "CACHE", 0, 2)]


@pytest.mark.parametrize("publication", ["schedule", "step_end"])
def test_a_last_block_is_published_before_it_is_released(publication: str) -> None:
    bench = Bench(Settings(20, block_size=4, publication=publication))
    bench.add(5, 4, TokenKeys(0, range(9), 4, 5))  # ends with KV of 8 tokens
    bench.drain()
    again = bench.add(9, 1, TokenKeys(1, range(9), 4, 9))
    bench.drain()
    assert again.num_cached_tokens == 8


@pytest.mark.parametrize(("admits", "step"), [(False, 6), (True, 5)])
def test_a_step_that_preempted_may_admit(admits: bool, step: int) -> None:
    """At step 5 the first needs a fourth block of seven. The second, 9 tokens, gives up three and is back at once."""
    settings = Settings(7, block_size=4, caching=False, admit_after_preemption=admits, full_prompt=False, budget=4)
    run = run_of(trace_of([0, 0, 0], [4, 4, 4], [20, 20, 20]), settings)
    steps = {event: at for at, event, _, _ in reversed(run.decisions(Event.PREEMPT, Event.RESUME))}
    assert steps["RESUME"] - steps["PREEMPT"] == (0 if admits else 1)


@pytest.mark.parametrize(("ends", "num_computed"), [(False, 3), (True, 2)])
def test_who_is_its_own_victim_may_end_the_running_loop(ends: bool, num_computed: int) -> None:
    """The second of three running requests is the least urgent, and needs a block too many. Is the third served?"""
    bench = Bench(Settings(4, block_size=4, caching=False, priority=True, own_preemption_ends_step=ends))
    first, victim = bench.add(5, 9, priority=0), bench.add(3, 9, priority=2)
    bench.step()
    third = bench.add(2, 9, priority=1)
    bench.step()
    plan = bench.step()
    assert plan is not None
    assert plan.preempted == [victim]
    assert first.live[0].num_computed == 7
    assert third.live[0].num_computed == num_computed


@pytest.mark.parametrize(("when_idle", "outcome"), [(False, Outcome.FINISHED), (True, Outcome.REJECTED)])
def test_a_watermark_may_hold_where_nothing_runs(when_idle: bool, outcome: Outcome) -> None:
    """A tenth of ten blocks stays free: a prompt of ten can then never start."""
    admission = partial(Reservation, watermark=0.1, watermark_when_idle=when_idle)
    run = run_of(trace_of([0, 0], [40, 36], [1, 1]), Settings(10, block_size=4, admission=admission))
    assert [request.outcome for request in run.requests()] == [outcome, Outcome.FINISHED]


@pytest.mark.parametrize(("free_order", "block"), [("unhashed_first", 2), ("append_all", 3)])
def test_free_order_decides_which_block_is_next(free_order: str, block: int) -> None:
    """Ten tokens leave a third block without a hash; four blocks. It is reused at once, or last in line."""
    bench = Bench(Settings(4, block_size=4, free_order=free_order))
    bench.add(10, 1)
    bench.drain()
    bench.add(3, 1)
    bench.drain()
    assert bench.decisions(Event.ALLOC)[-1][3] == block


# ---- slots ------------------------------------------------------------------------------------------------------


STRICT = Settings(100, max_num_seqs=1, priority=True, preemption=StrictPriority)


def test_scenario_13_strict_priority_takes_a_slot_once() -> None:
    """One slot, held by a request of priority 5 until an urgent one comes at 10 s; then it has its turn again."""
    run = run_of(trace_of([0, 10], [16, 16], [100, 5], priority=[5, 0]), STRICT)
    assert run.num_preemptions == 1
    assert run.request(1).first_scheduled_ps == 10 * PS_PER_S
    assert run.request(1).finish_ps == 15 * PS_PER_S
    assert run.request(0).finish_ps == 105 * PS_PER_S


def test_scenario_13_equals_leave_each_other_alone() -> None:
    run = run_of(trace_of([0, 10], [16, 16], [100, 5], priority=[5, 5]), STRICT)
    assert run.num_preemptions == 0
    assert run.request(1).first_scheduled_ps == 100 * PS_PER_S


def test_a_slot_is_not_taken_for_one_who_would_lose_it_again() -> None:
    """Under fcfs the victim would be first in line: it would come straight back."""
    run = run_of(trace_of([0, 10], [16, 16], [100, 5], priority=[5, 0]), replace(STRICT, priority=False))
    assert run.num_preemptions == 0


def test_a_swapped_out_victim_loses_no_work() -> None:
    settings = replace(STRICT, preemption=partial(StrictPriority, mode="swap"), host_blocks=100)
    run = run_of(trace_of([0, 10], [16, 16], [100, 5], priority=[5, 0]), settings)
    assert (run.num_preemptions, run.request(0).num_recomputed_tokens) == (1, 0)
    assert run.request(1).first_scheduled_ps == 11 * PS_PER_S, "the copy to the host is a step of its own here"
    assert run.request(0).finish_ps == 106 * PS_PER_S
