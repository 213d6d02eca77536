"""Spans are an optimisation, never an approximation: with them or without, a run is the same to the last integer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from workloads import Workload, workloads
from world import Run, Settings, check_integrity, simulate, trace_of

from core.decision_log import Event, first_difference
from core.id_tables import IdTables
from core.interfaces import EvictionPolicy
from core.request import Outcome
from core.units import PS_PER_S
from policies.batching import Orca
from policies.eviction.fifo import FIFO
from policies.eviction.gdsf import GDSF
from policies.eviction.lru import LRU
from policies.eviction.s3fifo import S3FIFO
from policies.eviction.sieve import Sieve
from sim.linear_cost import LinearCost
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.schema import Trace
from traces.transforms import limit, rate_scale

SHARED = Path(__file__).parents[1].parent / "shared"


def run_of(workload: Workload, spans: bool) -> Run:
    chosen = replace(workload.settings, spans=spans)
    return simulate(workload.trace, chosen, workload.cost, workload.arrivals, workload.concurrency)


def assert_equal(spans: Run, steps: Run) -> None:
    """Every decision with its block ids, every time, every count."""
    difference = first_difference(spans.scheduler.log.rows(), steps.scheduler.log.rows())
    assert difference is None, str(difference)
    for ours, theirs in zip(spans.requests(), steps.requests(), strict=True):
        for name in ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps", "outcome"):
            assert getattr(ours, name) == getattr(theirs, name), (ours.request_id, name)
    for columns in ("request_arrays", "step_arrays"):
        ours, theirs = getattr(spans, columns)(), getattr(steps, columns)()
        for name in ours:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    assert spans.scheduler.recorder.step_duration_ps == steps.scheduler.recorder.step_duration_ps
    assert spans.gaps_s() == steps.gaps_s()
    assert spans.scheduler.tables.pool.num_evictions == steps.scheduler.tables.pool.num_evictions
    assert spans.scheduler.recorder.num_swap_fallbacks == steps.scheduler.recorder.num_swap_fallbacks


def assert_sound(run: Run) -> None:
    """Everybody's fate is told, nothing is left behind, and every token but a sample's first has its gap."""
    check_integrity(run.scheduler)
    assert all(request.outcome is not Outcome.UNFINISHED for request in run.requests())
    assert run.scheduler.tables.pool.num_referenced == 0
    assert run.scheduler.tables.swapping.host.num_available == run.scheduler.tables.swapping.host.num_blocks
    num_gaps = sum(
        request.num_produced_tokens - request.num_samples for request in run.requests() if request.num_produced_tokens
    )
    assert len(run.gaps_s()) == num_gaps
    if all(request.num_samples == 1 and request.outcome is not Outcome.CANCELLED for request in run.requests()):
        decoding_ps = sum(r.finish_ps - r.first_token_ps for r in run.requests() if r.first_token_ps >= 0)
        assert sum(run.gaps_s()) == pytest.approx(decoding_ps * 1e-12, rel=1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(workload=workloads())
def test_spans_and_single_steps_are_the_same_run(workload: Workload) -> None:
    spans, steps = run_of(workload, spans=True), run_of(workload, spans=False)
    assert_equal(spans, steps)
    assert_sound(spans)


@settings(max_examples=110, deadline=None, derandomize=True)
@given(workload=workloads(), eviction=st.sampled_from([LRU, LRU, Sieve, S3FIFO, GDSF]))
def test_blocks_kept_by_ids_and_one_by_one_are_the_same_run(workload: Workload, eviction: type[EvictionPolicy]) -> None:
    """Single steps keep them one by one. What evictions cost, and whom, is the same, too."""
    usual = replace(
        workload.settings, eviction=eviction, host_blocks=0, free_order="unhashed_first", asynchronous=False
    )
    usual = replace(usual, publication="schedule", leaf_first=False)
    workload = replace(workload, settings=usual, trace=replace(workload.trace, num_samples=None))
    runs, blocks = run_of(workload, spans=True), run_of(workload, spans=False)
    assert isinstance(runs.scheduler.tables, IdTables)
    assert_equal(runs, blocks)
    assert_sound(runs)
    ours, theirs = (run.scheduler.tables.pool.attribution for run in (runs, blocks))
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        assert (ours.charges, ours.num_costly) == (theirs.charges, theirs.num_costly)


# ---- what broke it once -----------------------------------------------------------------------------------------


def both(trace: Trace, chosen: Settings, **options: Any) -> Run:
    spans, steps = (simulate(trace, replace(chosen, spans=on), **options) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)
    return spans


def test_an_eviction_can_let_the_head_in() -> None:
    """FIFO takes the root of what the head would find. Without its root it finds nothing, and costs less memory."""
    trace = trace_of([0] * 6, [1, 1, 16, 17, 1, 1], [1, 1, 4, 1, 1, 1])
    chosen = Settings(17, block_size=2, max_num_seqs=2, budget=2, long_prefill=1, full_prompt=False, eviction=FIFO)
    run = both(trace, chosen)
    assert run.decisions(Event.RESUME) == [(19, "RESUME", 3, 0)]


def test_what_a_decode_fills_can_be_the_missing_parent_of_an_orphan() -> None:
    """SIEVE evicts the root of the long text, of which the last request then says the first five tokens."""
    trace = trace_of([0] * 3, [20, 1, 1], [1, 1, 5], segments=[[(0, 20)], [(100, 1)], [(0, 1)]])
    trace = replace(trace, output_segments=Ragged.of_segments([[[20, 1]], [[101, 1]], [[1, 5]]]))
    run = both(trace, Settings(4, block_size=5, max_num_seqs=1, eviction=Sieve))
    assert run.step_arrays()["num_orphan_blocks"][-3:].tolist() == [1, 1, 0]


def test_a_publication_can_let_the_head_in() -> None:
    """Ten blocks of 4. The head, 39 tokens, knows what the running request will say: each block that it fills is one
    less to compute. When its third is full, 7 are needed and 7 are free.
    """
    trace = trace_of([0, 1], [8, 39], [30, 2], segments=[[(0, 8)], [(0, 39)]])
    trace = replace(trace, output_segments=Ragged.of_segments([[[8, 30]], [[500, 2]]]))
    run = both(trace, Settings(10, block_size=4))
    assert (run.request(1).num_cached_tokens, run.request(1).first_scheduled_ps // PS_PER_S) == (12, 4)


def test_samples_come_back_one_token_short() -> None:
    """The first sample finds all its text cached but the newest token; the others still start from it."""
    trace = trace_of([0] * 3, [4, 4, 21], [6, 6, 13], num_samples=[1, 1, 3])
    run = both(trace, Settings(11, block_size=8, max_num_seqs=5, budget=23, chunked=False, full_prompt=False))
    assert run.request(2).num_preemptions == 1
    assert run.request(2).num_produced_tokens == 39


def test_a_request_that_sat_out_the_step_in_which_it_is_cancelled_keeps_its_tokens() -> None:
    trace = trace_of([0, 0], [1, 1], [3, 3], num_samples=[1, 2], cancel_after_ps=[-1, 2 * PS_PER_S])
    run = both(trace, Settings(8, block_size=1, max_num_seqs=3, budget=2, caching=False, full_prompt=False))
    assert run.request(1).num_produced_tokens == 2


def test_samples_that_share_no_more_are_counted_so() -> None:
    """Two samples share the block of their prompt; when they have ended, nobody does."""
    trace = trace_of([0] * 4, [1] * 4, [1, 1, 2, 1], num_samples=[1, 1, 2, 1])
    run = both(trace, Settings(4, 1, 2, 1, caching=False, full_prompt=False, batching=Orca))
    assert run.step_arrays()["num_shared_references"].tolist() == [0, 0, 1, 0]


# ---- what it brings ---------------------------------------------------------------------------------------------


def test_a_lone_request_is_two_plans_however_long() -> None:
    run = both(trace_of([0], [100], [900]), Settings(100), cost=LinearCost(0.01, context_token_s=1e-6))
    assert (run.num_steps, run.num_plans) == (900, 2)


def test_arrivals_cut_a_span_only_if_somebody_can_start() -> None:
    """Two slots. The second arrival takes one at the next step; the third must wait for a slot, and cuts nothing."""
    run = both(trace_of([0, 10.5, 20.5], [4, 4, 4], [50, 50, 2]), Settings(100, max_num_seqs=2))
    starts = [start // PS_PER_S for start in run.scheduler.recorder.plan_column("start_ps")]
    assert starts == [0, 1, 11, 12, 50, 51, 52]


@pytest.mark.skipif(not SHARED.exists(), reason="no shared traces beside the checkout")
def test_a_public_trace_needs_less_than_half_as_many_plans_as_steps() -> None:
    """The first 3000 requests of Azure's conversation trace at 6.45 a second, on a round model of an A100."""
    trace = limit(read_trace(SHARED / "traces" / "azure" / "AzureLLMInferenceTrace_conv.csv"), 3000)
    trace = rate_scale(trace, 6.45 / ((trace.num_requests - 1) / trace.span_s))
    cost = LinearCost(0.006, prefill_token_s=3e-5, decode_sequence_s=1e-4, context_token_s=2e-8)
    run = simulate(trace, Settings(27_000, max_num_seqs=128, budget=4096, caching=False), cost)
    assert all(request.outcome is Outcome.FINISHED for request in run.requests())
    assert run.num_plans <= 0.5 * run.num_steps
