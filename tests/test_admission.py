"""Admission policies: who may start, what is kept free for whom, and what that does to preemptions and latency."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spans import assert_equal, assert_sound
from workloads import Workload, workloads
from world import Bench, Run, Settings, simulate, trace_of

from core.decision_log import Event
from core.errors import InputError
from core.interfaces import PolicyEnv
from core.request import Outcome
from core.units import PS_PER_S
from policies.admission.full_reservation import FullReservation
from policies.admission.new_token_ratio import NewTokenRatio
from policies.admission.peak_aware import Course, PeakAware, PeakAwarePredicted, peak_tokens
from policies.admission.reservation import Reservation
from policies.admission.slo_aware import SLOAware
from policies.preemption.last_arrived import LastArrived

ENV = PolicyEnv(lambda: 0, 1000, 16)
POLICIES = {
    "greedy": partial(Reservation, full_prompt=False),
    "full_reservation": FullReservation,
    "new_token_ratio": partial(NewTokenRatio, decay_steps=6, clip_tokens=8, headroom_steps=2),
    "peak_aware": PeakAware,
    "peak_aware_noisy": partial(PeakAwarePredicted, noise=0.7),
    "slo_aware": partial(SLOAware, ttft_s=1e-10, tpot_s=3.5e-11, step_s=1e-11, decode_sequence_s=1e-11),
    "slo_aware_tpot": partial(SLOAware, tpot_s=3.5e-11, step_s=1e-11, decode_sequence_s=1e-11),
}


def crowd(num_requests: int = 30, seed: int = 0) -> Any:
    """Requests of mixed lengths, two a second."""
    draw = np.random.default_rng(seed)
    prompts, outputs = draw.integers(20, 200, num_requests), draw.integers(10, 150, num_requests)
    return trace_of([row * 0.5 for row in range(num_requests)], prompts.tolist(), outputs.tolist())


# ---- the watermark ----------------------------------------------------------------------------------------------


def test_the_watermark_of_the_paper():
    """One per cent of 29,205 blocks: 292 stay free (catalogue check value)."""
    bench = Bench(Settings(29_205, budget=1 << 30, watermark=0.01))
    for num_blocks in (10_000, 18_913, 1):
        bench.add(16 * num_blocks, 1)
    plan = bench.scheduler.schedule(0)
    assert [request.request_id for request in plan.admitted] == [0, 1]
    assert bench.pool.num_available == 292


# ---- everything reserved ----------------------------------------------------------------------------------------


def test_what_is_reserved():
    """10 blocks of 4. A reserves ceil((8 + 13 - 1) / 4) = 5 blocks, B another 5; C waits until one has ended."""
    bench = Bench(Settings(10, block_size=4, admission=FullReservation))
    for _ in range(3):
        bench.add(8, 13)
    bench.drain()
    first = [request.first_scheduled_ps // PS_PER_S for request in bench.scheduler.recorder.done]
    assert first == [0, 0, 13]
    assert not bench.decisions(Event.PREEMPT)


def test_what_clients_allow_is_reserved_though_less_is_produced():
    """Allowed 33 instead of 13: ceil((8 + 33 - 1) / 4) = 10 blocks, the whole pool. Allowed 100: the pool, alone."""
    for allowed in (33, 100):
        bench = Bench(Settings(10, block_size=4, admission=FullReservation))
        for _ in range(3):
            bench.add(8, 13, max_new_tokens=allowed)
        bench.drain()
        first = [request.first_scheduled_ps // PS_PER_S for request in bench.scheduler.recorder.done]
        assert first == [0, 13, 26]


@settings(max_examples=25, deadline=None, derandomize=True)
@given(workload=workloads())
def test_nothing_is_ever_preempted_where_all_is_reserved(workload: Workload) -> None:
    for_memory = partial(LastArrived, mode=workload.settings.mode)  # not for slots, whatever was drawn
    chosen = replace(workload.settings, admission=FullReservation, preemption=for_memory)
    run = simulate(workload.trace, chosen, workload.cost, workload.arrivals, workload.concurrency)
    assert run.num_preemptions == 0
    assert_sound(run)


# ---- SGLang's ratio ---------------------------------------------------------------------------------------------


def test_the_ratio_decays_to_its_floor():
    """0.7 falls by 0.00100333 a step to 0.098 (catalogue check values)."""
    policy = NewTokenRatio(ENV)
    assert round(policy.floor_ratio, 3) == 0.098
    assert round(policy.decay_per_step, 8) == 0.00100333
    assert [round(policy.ratio(step), 4) for step in (0, 300, 600, 900)] == [0.7, 0.399, 0.098, 0.098]
    assert NewTokenRatio(ENV, conservativeness=2.0).initial_ratio == 1.0


def test_a_preemption_sets_the_ratio_by_what_was_used():
    """The survivors have 100 and 50 outputs of 512 each: (150 + 2 x 20) / 1025 (catalogue check value)."""
    bench = Bench(Settings(1000, caching=False, admission=NewTokenRatio))
    bench.add(16, 512)
    bench.steps(50)
    bench.add(16, 512)
    bench.steps(50)
    scheduler = bench.scheduler
    policy = scheduler.policies.admission
    assert isinstance(policy, NewTokenRatio)
    assert [request.live[0].num_outputs for request in scheduler.running] == [100, 50]
    policy.on_preempt(bench.request(1, 1), scheduler.view)
    assert round(policy.ratio(scheduler.step), 5) == 0.18537
    assert policy.ratio(scheduler.step + 1) == pytest.approx(0.18537 - 0.00100333, abs=1e-5)


@pytest.mark.parametrize(("conservativeness", "comes_after"), [(1.0, 1), (1 / 0.7, 158)])
def test_room_is_kept_for_a_share_of_the_outputs(conservativeness, comes_after):
    """1000 slots of a token. A has a prompt of 100 and is allowed 600 more, B 100 and 300. At step k A has k outputs
    and 100 + k slots: B comes when 900 - k > 100 + 300 + (600 - k) x ratio(k). Until then it waits in long strides.
    """
    admission = partial(NewTokenRatio, conservativeness=conservativeness)
    trace = trace_of([0, 0.5], [100, 100], [600, 300])
    run = simulate(trace, Settings(1000, block_size=1, caching=False, admission=admission))
    ratio = NewTokenRatio(ENV, conservativeness=conservativeness).ratio
    fits = next(k for k in range(1, 600) if 900 - k > 100 + 300 + (600 - k) * ratio(k))
    assert run.request(1).first_scheduled_ps // PS_PER_S == fits == comes_after
    assert run.num_plans < 20


def test_requests_of_the_same_step_count_in_full():
    """700 slots: A takes 100 + 400 and B would take 100 + 100. At ratio 0.7 they fit, in A's own step they do not."""
    bench = Bench(Settings(700, block_size=1, caching=False, admission=NewTokenRatio))
    bench.add(100, 400)
    bench.add(100, 101)
    bench.steps(2)
    first = [request.first_scheduled_ps // PS_PER_S for request in bench.scheduler.running]
    assert first == [0, 1]


def test_an_idle_scheduler_begins_anew():
    bench = Bench(Settings(1000, caching=False, admission=NewTokenRatio))
    policy = bench.scheduler.policies.admission
    assert isinstance(policy, NewTokenRatio)
    bench.add(16, 100)
    bench.drain()
    assert policy.ratio(bench.scheduler.step) == pytest.approx(0.7 - 100 * 0.00100333, abs=1e-5)
    bench.add(16, 100)
    bench.step()
    assert policy.ratio(bench.scheduler.step - 1) == 0.7


# ---- the peak to come -------------------------------------------------------------------------------------------


def test_the_peak_of_two():
    """20 x 1 + 4 = 24; 5 x 2 + 14 = 24 (catalogue check value)."""
    assert peak_tokens([Course(10, 5), Course(4, 20)]) == peak_tokens([Course(4, 20), Course(10, 5)]) == 24
    assert peak_tokens([]) == 0


def stepwise_peak(courses: list[Course]) -> int:
    """By walking: each grows by a token a step, and gives all back after its last."""
    return max(
        (
            sum(used + step for used, remaining in courses if step <= remaining)
            for step in range(max(course.remaining for course in courses) + 1)
        ),
        default=0,
    )


COURSES = st.lists(st.builds(Course, st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(courses=COURSES)
def test_the_peak_equals_a_walk(courses: list[Course]) -> None:
    assert peak_tokens(courses) == stepwise_peak(courses)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(courses=COURSES, new=st.builds(Course, st.integers(1, 50), st.integers(1, 30)), num_samples=st.integers(1, 4))
def test_the_peak_falls_by_at_most_the_samples_that_wait(courses: list[Course], new: Course, num_samples: int) -> None:
    """What `PeakAware.next_change` relies on."""
    later, waiting = [Course(used + 1, max(remaining - 1, 0)) for used, remaining in courses], [new] * num_samples
    assert peak_tokens([*later, *waiting]) >= peak_tokens([*courses, *waiting]) - num_samples


def test_a_head_of_several_samples_is_let_in_as_soon_as_it_fits() -> None:
    """Three samples wait: the peak falls by three a step, and spans end as early."""
    trace = trace_of([0, 1], [2, 9], [12, 12], num_samples=[1, 3])
    chosen = Settings(10, block_size=7, max_num_seqs=8, budget=15, caching=False, admission=PeakAware)
    spans, steps = (simulate(trace, replace(chosen, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert spans.request(1).first_scheduled_ps < spans.request(0).finish_ps, "it did not wait for the end"


def test_no_preemption_where_lengths_are_known_and_blocks_waste_nothing():
    tight = Settings(400, block_size=1, caching=False, admission=PeakAware)
    assert simulate(crowd(), tight).num_preemptions == 0
    greedy = partial(Reservation, full_prompt=False)
    assert simulate(crowd(), replace(tight, admission=greedy)).num_preemptions > 0


def test_what_is_predicted_too_short_is_let_in_too_early():
    """The same trace: allowed twice as much, PeakAware is careful; blurred predictions err to both sides."""
    tight = Settings(400, block_size=1, caching=False)
    noisy = simulate(crowd(), replace(tight, admission=partial(PeakAwarePredicted, noise=1.0)))
    assert noisy.num_preemptions > 0
    exact = simulate(crowd(), replace(tight, admission=PeakAwarePredicted))
    assert exact.num_preemptions == 0


# ---- objectives -------------------------------------------------------------------------------------------------


def test_whoever_cannot_be_served_in_time_is_turned_away():
    """A second a step, a slot, 3 s to the first token: while A runs for 5 s, B and C wait too long. D comes after."""
    admission = partial(SLOAware, ttft_s=3.0, step_s=1.0, decode_sequence_s=0.0, prefill_token_s=0.0)
    trace = trace_of([0, 0, 1, 5], [16] * 4, [5] * 4)
    run = simulate(trace, Settings(100, max_num_seqs=1, admission=admission))
    outcomes = [request.outcome for request in run.requests()]
    assert outcomes == [Outcome.FINISHED, Outcome.REJECTED, Outcome.REJECTED, Outcome.FINISHED]
    late = partial(admission.func, **admission.keywords, rejects=False)
    run = simulate(trace, Settings(100, max_num_seqs=1, admission=late))
    assert {request.outcome for request in run.requests()} == {Outcome.FINISHED}


def test_nobody_slows_the_others_down_too_much():
    """10 ms and 5 ms for each: within 25 ms three decode at a time."""
    admission = partial(SLOAware, tpot_s=0.025, step_s=0.010, decode_sequence_s=0.005)
    bench = Bench(Settings(100, admission=admission))
    for _ in range(5):
        bench.add(16, 4)
    bench.drain()
    first = [request.first_scheduled_ps // PS_PER_S for request in bench.scheduler.recorder.done]
    assert first == [0, 0, 0, 4, 4]


# ---- what the field says ----------------------------------------------------------------------------------------


def test_reservation_trades_preemptions_for_waiting():
    """No preemption against many, at the price of a later first token (the claim that reserving is for)."""
    tight = Settings(60, block_size=8, caching=False)
    reserved = simulate(crowd(), replace(tight, admission=FullReservation))
    greedy = simulate(crowd(), replace(tight, admission=partial(Reservation, full_prompt=False)))
    assert (reserved.num_preemptions, greedy.num_preemptions > 10) == (0, True)
    assert reserved.num_prefill_tokens < greedy.num_prefill_tokens

    def mean_queue_s(run: Run) -> float:
        return float(np.mean([r.first_scheduled_ps - r.arrival_ps for r in run.requests()])) / PS_PER_S

    assert mean_queue_s(reserved) > mean_queue_s(greedy)


# ---- whatever the policy ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, derandomize=True)
@given(workload=workloads(), name=st.sampled_from(sorted(POLICIES)))
def test_spans_and_single_steps_are_the_same_run(workload: Workload, name: str) -> None:
    chosen = replace(workload.settings, admission=POLICIES[name])
    spans, steps = (workload.run(replace(chosen, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (partial(Reservation, watermark=1.0), r"admission\.watermark=1"),
        (partial(NewTokenRatio, conservativeness=0), r"admission\.conservativeness=0"),
        (partial(NewTokenRatio, floor_share=2), r"admission\.floor_share=2"),
        (partial(NewTokenRatio, decay_steps=0), r"admission\.decay_steps=0"),
        (partial(PeakAwarePredicted, noise=-1), r"admission\.noise=-1"),
        (partial(SLOAware, ttft_s=0), r"admission\.ttft_s=0"),
        (partial(SLOAware, step_s=-1), r"admission\.step_s=-1"),
    ],
)
def test_parameters_out_of_range_are_refused(policy, message):
    with pytest.raises(InputError, match=message):
        policy(ENV)
