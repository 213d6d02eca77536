"""Spans are an optimisation, never an approximation: with them or step by step, a run is the same to the last integer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from workloads import Workload, workloads
from world import Run, Settings, check_integrity, simulate, trace_of

from core.decision_log import first_difference
from core.request import Outcome

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
    assert run.scheduler.tables.host.num_available == run.scheduler.tables.host.num_blocks
    num_gaps = sum(request.num_produced_tokens - request.num_samples for request in run.requests() if request.num_produced_tokens)
    assert len(run.gaps_s()) == num_gaps
    if all(request.num_samples == 1 and request.outcome is not Outcome.CANCELLED for request in run.requests()):
        decoding_ps = sum(r.finish_ps - r.first_token_ps for r in run.requests() if r.first_token_ps >= 0)
        assert sum(run.gaps_s()) == pytest.approx(decoding_ps * 1e-12, abs=1e-9 * 1e-6)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(workload=workloads())
def test_spans_and_single_steps_are_the_same_run(workload: Workload) -> None:
    spans, steps = run_of(workload, spans=True), run_of(workload, spans=False)
    assert_equal(spans, steps)
    assert_sound(spans)
