"""Whatever comes in, and whenever it goes: blocks, slots and host memory add up after every step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import settings_of, traces
from world import Bench, Settings, check_integrity, scheduler_of, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.errors import InputError
from core.interfaces import (
    Admission,
    AdmissionPolicy,
    Preemption,
    PreemptionPolicy,
    PreemptMode,
    Running,
    SchedulerView,
    Shortage,
)
from core.plan import StepPlan, StepResult
from core.request import Outcome, Request, Status
from core.units import PS_PER_S
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.schema import Trace


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, Settings]:
    block_size = draw(st.integers(1, 6))
    trace = draw(traces(block_size))
    return trace, draw(settings_of(block_size, trace))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(case=cases(), data=st.data())
def test_integrity_after_every_step_of_random_runs(case: tuple[Trace, Settings], data: st.DataObject) -> None:
    """Requests of a random trace come at random steps and are cancelled at random moments, also while a step runs."""
    drive_at_random(*case, data)


def drive_at_random(trace: Trace, chosen: Settings, data: st.DataObject) -> None:
    scheduler = scheduler_of(replace(chosen, spans=False))
    source = TraceSource(replace(trace, cancel_after_ps=None), ReplayConfig(chosen.block_size, Arrivals.ALL_AT_ONCE))
    coming = [given_input.request for given_input in source.pop_due(0)]
    alive: list[Request] = []
    running: StepPlan | None = None  # under async scheduling, while the next is decided
    for now in range(400):
        for _ in range(data.draw(st.integers(0, 2)) if coming else 0):
            alive.append(coming.pop())
            scheduler.add(alive[-1], now)
            if not coming:
                break
        cancelled = data.draw(st.sampled_from([None, "before", "during"])) if now % 5 == 4 and alive else None
        who = data.draw(st.sampled_from(alive)) if cancelled else None
        if who is not None and cancelled == "before":
            scheduler.cancel(who, now)
        plan = scheduler.schedule(now)
        check_integrity(scheduler)
        if who is not None and cancelled == "during":
            scheduler.cancel(who, now)
            check_integrity(scheduler)
        if plan is not None and plan.is_empty:
            plan = None
        due, running = (running, plan) if chosen.asynchronous else (plan, None)
        if due is not None:
            scheduler.commit(due, StepResult((1,)))
        check_integrity(scheduler)
        if not coming and not scheduler.running and not scheduler.waiting:
            break
    assert all(request.status is Status.DONE for request in alive)
    assert scheduler.tables.pool.num_referenced == 0
    assert scheduler.tables.swapping.host.num_available == chosen.host_blocks


# ---- cancellation -----------------------------------------------------------------------------------------------

SMALL = Settings(12, block_size=4, budget=8, host_blocks=12)


def waiting(bench: Bench) -> Request:
    return bench.add(16, 8)


def prefilling(bench: Bench) -> Request:
    request = bench.add(16, 8)
    bench.step()
    assert 0 < request.live[0].num_computed < 16
    return request


def decoding(bench: Bench) -> Request:
    request = bench.add(8, 8)
    bench.steps(4)
    assert request.live[0].num_outputs == 4
    return request


def preempted(bench: Bench) -> Request:
    """The second of two that outgrow the pool."""
    _, second = bench.add(8, 32), bench.add(8, 32)
    while second.status is not Status.PREEMPTED:
        bench.step()
    return second


STATES = [waiting, prefilling, decoding, preempted]


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("state", STATES)
def test_cancellation_in_every_state_is_legal_and_idempotent(state, mode: str) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(replace(SMALL, mode=mode))
    request = state(bench)
    assert (request.swapped is not None) == (state is preempted and mode == "swap")
    for _ in range(2):
        bench.cancel(request)
        assert (request.status, request.outcome) == (Status.DONE, Outcome.CANCELLED)
        assert len(bench.scheduler.recorder.done) == 1
    bench.drain()
    assert bench.pool.num_referenced == 0
    assert bench.scheduler.tables.swapping.host.num_available == 12


@pytest.mark.parametrize("state", STATES)
def test_a_token_of_the_step_in_which_it_is_cancelled_is_lost(state) -> None:  # type: ignore[no-untyped-def]
    bench = Bench(SMALL)
    request = state(bench)
    produced = request.live[0].num_outputs
    with bench.in_step():
        bench.cancel(request)
    assert request.num_produced_tokens == produced
    bench.drain()
    assert bench.pool.num_referenced == 0


def test_a_request_that_is_done_cannot_be_cancelled() -> None:
    bench = Bench(SMALL)
    request = bench.add(4, 1)
    bench.drain()
    bench.cancel(request)
    assert request.outcome is Outcome.FINISHED


def test_what_a_cancelled_request_computed_stays_in_the_index() -> None:
    bench = Bench(SMALL)
    cancelled = bench.add(8, 20, TokenKeys(0, range(8), 4, 8))
    bench.step()
    bench.cancel(cancelled)
    again = bench.add(9, 1, TokenKeys(1, range(9), 4, 9))
    bench.drain()
    assert again.num_cached_tokens == 8


# ---- what can never run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "request_fields", "reason"),
    [
        (Settings(4, block_size=4), (16, 2), "needs 5 blocks, the pool has 4"),
        (Settings(100, max_num_seqs=2), (16, 2, 3), "3 samples exceed max_num_seqs=2"),
        (
            Settings(100, budget=8, chunked=False),
            (9, 2),
            "prompt exceeds max_batch_tokens=8 and chunked prefill is off",
        ),
        (Settings(100, max_model_len=16), (16, 2), "prompt of 16 tokens leaves no room for output in max_model_len=16"),
        (Settings(100), (0, 2), "has 0 prompt tokens: there is nothing to compute"),
        (Settings(100), (4, 0), "wants 0 output tokens: there is nothing to produce"),
    ],
)
def test_unservable_requests_end_at_once_with_a_reason(
    chosen: Settings, request_fields: tuple[int, ...], reason: str
) -> None:
    bench = Bench(chosen)
    num_prompt, num_output, *samples = request_fields
    request = bench.request(num_prompt, num_output, num_samples=samples[0] if samples else 1)
    assert not bench.scheduler.add(request, 0)
    assert (request.outcome, request.reject_reason) == (Outcome.REJECTED, reason)
    assert bench.step() is None, "it does not wait"


def test_the_largest_request_that_fits_is_served() -> None:
    """On each of those limits exactly."""
    for chosen, fields in [
        (Settings(4, block_size=4), (16, 1)),
        (Settings(4, block_size=4, watermark=0.5), (16, 1)),
        (Settings(7, block_size=4), (4, 8, 3)),  # one block shared, two more for each sample
        (Settings(100, max_num_seqs=3), (16, 2, 3)),
        (Settings(100, budget=9, chunked=False), (9, 2)),
    ]:
        bench = Bench(chosen)
        request = bench.add(*fields[:2], num_samples=fields[2] if len(fields) > 2 else 1)
        bench.drain(at_most=50)
        assert request.outcome is Outcome.FINISHED
    assert not Bench(Settings(6, block_size=4)).scheduler.add(bench.request(4, 8, num_samples=3), 0)


def test_output_ends_at_the_model_length() -> None:
    bench = Bench(Settings(100, max_model_len=16))
    request = bench.add(14, 100)
    bench.drain(at_most=10)
    assert (request.outcome, request.num_produced_tokens) == (Outcome.FINISHED, 2)


def test_a_trace_row_longer_than_the_model_is_rejected() -> None:
    """The scheduler would cut it short; a trace that wants more than can be had is told so."""
    scheduler = scheduler_of(Settings(100, max_model_len=16))
    source = TraceSource(trace_of([0], [14], [100]), ReplayConfig(16, max_model_len=16))
    (only,) = source.pop_due(0)
    assert not scheduler.add(only.request, 0)
    assert only.request.reject_reason == "has 114 tokens, more than max_model_len=16"


def test_a_preempted_text_longer_than_the_budget_comes_back_in_chunks() -> None:
    """Without chunked prefill it could otherwise never come back: its outputs made it longer than any step."""
    bench = Bench(Settings(12, block_size=4, budget=16, chunked=False, caching=False))
    first, second = bench.add(8, 32), bench.add(8, 32)
    bench.drain(at_most=200)
    assert second.num_preemptions > 0
    assert (first.num_produced_tokens, second.num_produced_tokens) == (32, 32)
    assert len([d for d in bench.decisions(Event.CHUNK) if d[2] == 1]) > 2


class TurnsAway(AdmissionPolicy):
    """Rejects every other request."""

    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        return Admission.REJECT if request.request_id % 2 else Admission.ADMIT


@pytest.mark.parametrize("spans", [True, False])
def test_whom_the_admission_policy_rejects_makes_way_for_the_next(spans: bool) -> None:
    """Clients of a closed loop go on when they are turned away, in the very instant; but steps have begun by then."""
    trace = trace_of([0] * 6, [4] * 6, [3] * 6)
    chosen = Settings(100, spans=spans, admission=TurnsAway)
    run = simulate(trace, chosen, arrivals=Arrivals.CLOSED_LOOP, concurrency=2)
    outcomes = [request.outcome.value for request in run.requests()]
    assert outcomes == ["finished", "rejected"] * 3
    assert [request.finish_ps // PS_PER_S for request in run.requests()] == [3, 0, 4, 3, 7, 4]


class SaysItTurnsNobodyAway(TurnsAway):
    rejects = False


def test_an_admission_policy_is_held_to_what_it_says_about_rejecting() -> None:
    with pytest.raises(InputError, match="SaysItTurnsNobodyAway answered REJECT, but says that it never rejects"):
        simulate(trace_of([0] * 2, [4] * 2, [3] * 2), Settings(100, admission=SaysItTurnsNobodyAway))


# ---- preemption within a step -----------------------------------------------------------------------------------


class FirstInLine(PreemptionPolicy):
    """Takes the first running request other than the one in need: it has been scheduled in this very step."""

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        assert shortage.blocks > 0
        return Preemption(next(r for r in running if r is not for_request), PreemptMode.RECOMPUTE)


@pytest.mark.parametrize(("keep", "num_found"), [(False, 4), (True, 8)])
def test_publications_of_a_cancelled_schedule_are_taken_back(keep: bool, num_found: int) -> None:
    """The first prompt's second chunk is scheduled, and its blocks published, before the other one's need cancels it.

    Of its 12 tokens 6 were computed, so one block of 4 may stay in the index. vLLM 0.33 leaves all of them there (the
    last is evicted for the other request); that is a switch.
    """
    chosen = Settings(5, block_size=4, budget=12, long_prefill=6, preemption=FirstInLine, full_prompt=False)
    bench = Bench(replace(chosen, keep_cancelled=keep))
    victim = bench.add(14, 1, TokenKeys(0, range(14), 4, 14))
    bench.add(14, 1, TokenKeys(1, range(100, 114), 4, 14))
    bench.step()
    plan = bench.step()
    assert plan is not None
    assert plan.preempted == [victim]
    assert bench.scheduler.tables.find_prefix(victim.live[0]).num_tokens == num_found


def test_a_policy_may_name_nobody() -> None:
    """Then whoever lacks room sits the step out."""

    class Nobody(PreemptionPolicy):
        def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
            return None

    bench = Bench(Settings(5, block_size=4, preemption=Nobody, caching=False))
    first, second = bench.add(8, 5), bench.add(7, 4)
    bench.drain(at_most=20)
    assert not bench.scheduler.recorder.preempted
    assert first.finish_ps < second.finish_ps
    assert max(bench.scheduler.recorder.late_gaps_ps) > PS_PER_S
