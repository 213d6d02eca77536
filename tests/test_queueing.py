"""Queue policies: who of the waiting comes next, by hand-made queues, and spans that change nothing."""

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
from world import Bench, Settings, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.errors import InputError
from core.request import Request
from policies.queueing.dfs_weight import DFSWeight
from policies.queueing.fcfs import FCFS
from policies.queueing.hrrn import HRRN
from policies.queueing.longest_prefix_match import LongestPrefixMatch
from policies.queueing.sjf import SJF
from policies.queueing.srpt import SRPT
from policies.queueing.vtc import VTC

POLICIES = {
    "sjf": SJF,
    "sjf_predicted": partial(SJF, noise=0.5, aging_tokens_per_s=2.0),
    "srpt": SRPT,
    "longest_prefix_match": partial(LongestPrefixMatch, max_waiting=4, check_tokens=2, share_tokens=2),
    "dfs_weight": DFSWeight,
    "hrrn_tokens": partial(HRRN, max_waiting=4),
    "hrrn_time": partial(HRRN, clock="time", prefill_tokens_per_s=1e11),
    "vtc": VTC,
}


def one_slot(queue: Any, **fields: Any) -> Settings:
    """Requests run one after another, so that their order shows."""
    return Settings(1000, block_size=16, max_num_seqs=1, queue=queue, **fields)


def order(bench: Bench) -> list[int]:
    """The requests as they were first admitted, once all are done."""
    bench.drain()
    done = bench.scheduler.recorder.done
    return [request.request_id for request in sorted(done, key=lambda request: request.first_scheduled_ps)]


# ---- by length --------------------------------------------------------------------------------------------------


def test_the_shortest_job_goes_first():
    bench = Bench(one_slot(SJF))
    for num_output in (30, 10, 20, 10):
        bench.add(16, num_output)
    assert order(bench) == [1, 3, 2, 0]


def test_aging_bounds_what_may_pass():
    """At 10 tokens a second, 40 tokens are passed by nobody who comes 4 seconds later or more."""
    bench = Bench(one_slot(partial(SJF, aging_tokens_per_s=10)))
    running = bench.add(16, 8)
    bench.step()
    long = bench.add(16, 40)
    bench.steps(3)
    passing = bench.add(16, 1)  # 3 seconds after it: 1 + 30 < 40
    bench.step()
    late = bench.add(16, 1)  # 4 seconds after it: 1 + 40 > 40
    assert order(bench) == [running.request_id, passing.request_id, long.request_id, late.request_id]


def test_a_prediction_depends_on_the_seed_and_the_request_alone():
    trace = trace_of([0] * 12, [16] * 12, [10 + row for row in range(12)])

    def starts(seed: int, noise: float) -> list[int]:
        run = simulate(trace, one_slot(partial(SJF, noise=noise), seed=seed))
        return [request.first_scheduled_ps for request in run.requests()]

    assert starts(0, 0.0) == starts(1, 0.0) == sorted(starts(0, 0.0))
    assert starts(1, 0.5) == starts(1, 0.5)
    assert starts(1, 0.5) != starts(2, 0.5)
    assert starts(1, 0.5) != starts(1, 0.0)


@pytest.mark.parametrize(
    ("queue", "after_preemption"),
    [(SJF, [("ADMIT", 2), ("RESUME", 1)]), (SRPT, [("RESUME", 1), ("ADMIT", 2)])],
)
def test_a_preempted_request_keeps_credit_for_its_outputs(queue, after_preemption):
    """Of 24 tokens 17 are there when memory runs out: with 7 left it precedes one of 10, which SJF prefers."""
    bench = Bench(Settings(10, block_size=4, max_num_seqs=2, caching=False, queue=queue))
    for num_output in (20, 24):
        bench.add(4, num_output)
    bench.steps(2)
    bench.add(4, 10)
    bench.drain()
    decided = [(event, who) for _, event, who, _ in bench.decisions(Event.ADMIT, Event.PREEMPT, Event.RESUME)]
    assert decided == [("ADMIT", 0), ("ADMIT", 1), ("PREEMPT", 1), *after_preemption]


# ---- by what is cached ------------------------------------------------------------------------------------------


class Texts:
    """Requests whose prompts are stretches of tokens, in a bench of one slot with a busy slot to begin with."""

    def __init__(self, queue: Any, *primers: list[int]) -> None:
        self.bench = Bench(one_slot(queue))
        for tokens in primers:
            self.add(tokens)
        self.bench.drain()
        self.add(list(range(90_000, 90_016)), num_output=3)
        self.bench.step()
        self.first = self.bench.request(1, 1).request_id + 1

    def add(self, tokens: list[int], num_output: int = 1) -> Request:
        owner = self.bench.request(1, 1).request_id + 1
        return self.bench.add(len(tokens), num_output, TokenKeys(owner, tokens, 16, len(tokens)))

    def order(self, *prompts: list[int]) -> list[int]:
        """Adds them all and tells in which order they were served, counted from 0."""
        requests = [self.add(tokens) for tokens in prompts]
        self.bench.drain()
        return sorted(range(len(requests)), key=lambda index: requests[index].first_scheduled_ps)


A, B, C = (list(range(start, start + 80)) for start in (0, 1000, 2000))


def own(number: int, num_tokens: int = 33) -> list[int]:
    """Text that nobody shares."""
    return list(range(10_000 * (number + 1), 10_000 * (number + 1) + num_tokens))


def test_the_longest_cached_prefix_goes_first():
    texts = Texts(LongestPrefixMatch, A, B)
    assert texts.order(own(0), A[:32] + own(1), B[:64] + own(2), own(3)) == [2, 1, 0, 3]


def test_a_long_queue_is_first_come_first_served():
    texts = Texts(partial(LongestPrefixMatch, max_waiting=3), A, B)
    assert texts.order(own(0), A[:32] + own(1), own(2), B[:64] + own(3)) == [0, 3, 1, 2]  # sorted once three are left


def test_of_those_that_share_a_new_prefix_one_goes_ahead():
    """0 and 1 share 32 tokens that nobody has computed: 1 waits, then finds them."""
    texts = Texts(LongestPrefixMatch)
    assert texts.order(A[:32] + own(0), A[:32] + own(1), own(2)) == [0, 1, 2]  # 0 has computed them: 1 matches
    held = Texts(partial(LongestPrefixMatch, check_tokens=48))
    assert held.order(A[:32] + own(0), own(1), A[:32] + own(2), own(3)) == [0, 2, 1, 3]
    order = LongestPrefixMatch(held.bench.scheduler.policies.queue.env)
    waiting = [held.add(A[48:] + own(4)), held.add(A[48:] + own(5)), held.add(own(6))]
    assert list(order.rerank(waiting, held.bench.scheduler.view)) == [waiting[0], waiting[2], waiting[1]]


def test_the_busiest_branch_goes_first_and_deep_before_shallow():
    """Three go through A's prefix, the deepest of them first. When it and one more have run, both branches weigh 1."""
    texts = Texts(DFSWeight, A, B)
    prompts = [B[:32] + own(0), A[:32] + own(1), A[:64] + own(2), own(3), A[:32] + own(4)]
    assert texts.order(*prompts) == [2, 1, 0, 4, 3]


def test_without_a_cache_there_is_nothing_to_go_by():
    for queue in (LongestPrefixMatch, DFSWeight):
        run = simulate(trace_of([0] * 4, [64] * 4, [2] * 4), one_slot(queue, caching=False))
        starts = [request.first_scheduled_ps for request in run.requests()]
        assert starts == sorted(starts)


# ---- by response ratio ------------------------------------------------------------------------------------------


def test_the_highest_response_ratio_by_tokens():
    """Ratios when the slot is free: 100/16 for 2 against 100/64 for 1; then 116/64 for 1 against 16/16 for 3."""
    bench = Bench(one_slot(HRRN))
    for num_prompt in (100, 64, 16):
        bench.add(num_prompt, 2)
    bench.step()
    bench.add(16, 2)
    assert order(bench) == [0, 2, 1, 3]


def test_the_highest_response_ratio_by_time():
    """At 16 tokens a second, after 10 s: 10/4 for 1, 10/1 for 2. After 11 s: 11/4 for 1 against 2/1 for 3."""
    bench = Bench(one_slot(partial(HRRN, clock="time", prefill_tokens_per_s=16)))
    for num_prompt, num_output in ((16, 10), (64, 1), (16, 1)):
        bench.add(num_prompt, num_output)
    bench.steps(9)
    bench.add(16, 1)
    assert order(bench) == [0, 2, 1, 3]


# ---- fair shares ------------------------------------------------------------------------------------------------


def counters(bench: Bench, *tenants: int) -> list[float]:
    scheduler = bench.scheduler
    return [scheduler.policies.queue.counter(tenant, scheduler.view) for tenant in tenants]  # type: ignore[attr-defined]


def test_what_a_request_is_charged():
    """100 prompt tokens and 50 outputs at weights 1 and 2: 200 (catalogue check value)."""
    bench = Bench(one_slot(VTC))
    bench.add(100, 50, tenant=7)
    bench.step()
    assert counters(bench, 7) == [100 + 2]
    bench.drain()
    assert counters(bench, 7) == [200]


def test_the_tenant_served_least_goes_first():
    bench = Bench(one_slot(VTC))
    for tenant in (0, 0, 0, 1, 1):
        bench.add(16, 4, tenant=tenant)
    assert order(bench) == [0, 3, 1, 4, 2]


def test_idling_earns_no_credit():
    """Tenant 1 comes after tenant 0 had 10 requests: it is lifted to their counter, and they take turns."""
    bench = Bench(one_slot(VTC))
    for _ in range(14):
        bench.add(16, 4, tenant=0)
    bench.steps(4 * 10)
    before = counters(bench, 0)
    late = [bench.add(16, 4, tenant=1).request_id for _ in range(3)]
    assert counters(bench, 1) == before == [10 * (16 + 8)]
    assert order(bench)[10:] == [10, *[each for pair in zip(late, (11, 12, 13), strict=True) for each in pair]]


def test_recomputation_is_not_charged():
    bench = Bench(Settings(10, block_size=4, max_num_seqs=2, caching=False, queue=VTC))
    for tenant, num_output in ((0, 20), (1, 24)):
        bench.add(4, num_output, tenant=tenant)
    bench.drain()
    assert bench.decisions(Event.PREEMPT)
    assert counters(bench, 0, 1) == [4 + 40, 4 + 48]


def largest_gap(queue: Any, lengths: list[list[tuple[int, int]]], slots: int = 3) -> tuple[float, float]:
    """Largest difference in service while both tenants wait, and the bound for it. Tenant 0 queues first."""
    bench = Bench(Settings(2000, block_size=16, max_num_seqs=slots, queue=queue, caching=False))
    for tenant, requests in enumerate(lengths):
        for num_prompt, num_output in requests:
            bench.add(num_prompt, num_output, tenant=tenant)
    scheduler, gap = bench.scheduler, 0.0
    while {request.tenant for request in scheduler.waiting} == {0, 1}:
        bench.step()
        served = [2 * scheduler.view.num_output_tokens(tenant) for tenant in (0, 1)]
        for request in [*scheduler.running, *scheduler.recorder.done]:
            served[request.tenant] += request.num_prompt_tokens
        gap = max(gap, abs(served[0] - served[1]))
    pairs = [pair for requests in lengths for pair in requests]
    most_output = slots * max(num_output for _, num_output in pairs)  # what fits in at a time
    return gap, 2 * max(max(num_prompt for num_prompt, _ in pairs), 2 * most_output)


REQUESTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=5, max_size=25)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(lengths=st.lists(REQUESTS, min_size=2, max_size=2), slots=st.integers(1, 4))
def test_the_gap_between_tenants_is_bounded(lengths: list[list[tuple[int, int]]], slots: int) -> None:
    gap, bound = largest_gap(VTC, lengths, slots)
    assert gap <= bound


def test_first_come_first_served_has_no_such_bound():
    """The gap under fcfs grows with the flood, under VTC it does not (OSDI'24, the paper's point)."""
    floods = [[[(30, 10)] * number, [(30, 10)] * number] for number in (10, 40)]
    (fcfs_short, bound), (fcfs_long, _) = (largest_gap(FCFS, flood) for flood in floods)
    (vtc_short, _), (vtc_long, _) = (largest_gap(VTC, flood) for flood in floods)
    assert fcfs_long >= 3.5 * fcfs_short > bound
    assert vtc_long == vtc_short <= bound


# ---- whatever the policy ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workload=workloads(), name=st.sampled_from(sorted(POLICIES)), data=st.data())
def test_spans_and_single_steps_are_the_same_run(workload: Workload, name: str, data: st.DataObject) -> None:
    num = workload.trace.num_requests
    tenants = data.draw(st.lists(st.integers(0, 2), min_size=num, max_size=num))
    trace = replace(workload.trace, tenant=np.array(tenants, dtype=np.int64))
    chosen = replace(workload.settings, queue=POLICIES[name])
    spans, steps = (
        simulate(trace, replace(chosen, spans=on), workload.cost, workload.arrivals, workload.concurrency)
        for on in (True, False)
    )
    assert_equal(spans, steps)
    assert_sound(spans)
    produced = [spans.scheduler.view.num_output_tokens(tenant) for tenant in range(3)]
    assert sum(produced) == sum(request.num_produced_tokens for request in spans.requests())


def test_single_steps_only_while_somebody_waits_and_a_slot_is_free():
    """Alone a request is two plans. Two slots taken: the third waits for one, and its order does not matter."""
    lone = simulate(trace_of([0], [100], [900]), Settings(100, queue=VTC))
    assert (lone.num_steps, lone.num_plans, lone.num_refused_spans) == (900, 2, 0)
    full = simulate(trace_of([0] * 3, [16] * 3, [500] * 3), Settings(1000, max_num_seqs=2, queue=VTC))
    assert (full.num_steps, full.num_plans, full.num_refused_spans) == (1000, 4, 0)
    # Room for one of them: who waits may change its place in each of the first's decodes, but the last, which ends.
    short = simulate(trace_of([0] * 2, [160] * 2, [10] * 2), Settings(11, max_num_seqs=2, queue=VTC))
    assert (short.num_steps, short.num_plans, short.num_refused_spans) == (20, 12, 8)
    ordered = simulate(trace_of([0] * 2, [160] * 2, [10] * 2), Settings(11, max_num_seqs=2))
    assert (ordered.num_steps, ordered.num_plans, ordered.num_refused_spans) == (20, 4, 0)


class Confused(FCFS):
    def rerank(self, heads, view):
        yield heads[0]
        yield heads[0]


def test_a_policy_that_names_somebody_who_does_not_wait_is_told():
    with pytest.raises(InputError, match=r"queue: Confused\.rerank named request 0, which does not wait"):
        simulate(trace_of([0, 0], [16, 16], [2, 2]), Settings(100, queue=Confused))


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        (partial(SJF, noise=-1), r"queue\.noise=-1"),
        (partial(SJF, aging_tokens_per_s=-1), r"queue\.aging_tokens_per_s=-1"),
        (partial(HRRN, clock="moon"), r"queue\.clock=moon: expected tokens or time"),
        (partial(HRRN, prefill_tokens_per_s=0), r"queue\.prefill_tokens_per_s=0"),
        (partial(LongestPrefixMatch, max_waiting=0), r"queue\.max_waiting=0"),
        (partial(VTC, output_weight=-2), r"queue\.output_weight=-2"),
    ],
)
def test_parameters_out_of_range_are_refused(queue, message):
    with pytest.raises(InputError, match=message):
        simulate(trace_of([0], [1], [1]), Settings(10, queue=queue))
