"""A run without a row a step: the same figures from stretches, a few rows, and gaps in closed form."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from workloads import Workload, workloads
from world import Run, simulate

from core.columns import gap_arrays
from core.condenser import Condenser
from core.few_steps import FewSteps
from core.gap_spans import GapSpans, summarize_spans
from core.metrics import Records, RequestColumns, StepColumns, compute_metrics
from core.packing import exact_dot, narrowed
from core.percentiles import summarize_weighted
from core.recorder import Recorder
from core.stretches import Stretches
from core.units import PS_PER_S


def figures(run: Run, steps: StepColumns) -> dict[str, Any]:
    """Those that steps are needed for; nan where undefined."""
    pool = run.scheduler.tables.pool
    none = np.zeros(0)
    requests = RequestColumns.of(run.request_arrays())
    records = Records(requests, steps, none, none.astype(np.int64), pool.num_blocks, 1, True, counts_orphans=True)
    metrics = compute_metrics(records)
    names = ("kv_utilization_ratio", "kv_cached_ratio", "evictable_ratio", "orphan_blocks")
    return _numbers({f"{name}.{part}": value for name in names for part, value in metrics[name].items()})


def _numbers(figures: dict[str, Any]) -> dict[str, float]:
    return {name: float("nan") if value is None else value for name, value in figures.items()}


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(workload=workloads())
def test_a_few_rows_tell_what_all_steps_tell(workload: Workload) -> None:
    given_to = workload.trace, workload.settings, workload.cost, workload.arrivals, workload.concurrency
    run = simulate(*given_to)
    often, seldom = Condenser(num_plans_at_once=1), Condenser()
    cut_up = simulate(*given_to, condenser=often).scheduler.recorder
    assert (cut_up.num_steps, cut_up.num_plans) == (run.num_steps, run.num_plans)
    few, spans = often.finish(cut_up)
    expected = figures(run, StepColumns.of(run.step_arrays()))
    gaps = gap_arrays(run.scheduler.recorder)
    all_at_once, all_spans = seldom.finish(run.scheduler.recorder)
    for field in fields(StepColumns):
        np.testing.assert_array_equal(getattr(few, field.name), getattr(all_at_once, field.name))
    assert len(few.start_s) <= 6
    assert figures(run, few) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert int(few.num_evictions.sum()) == run.scheduler.tables.pool.num_evictions

    told = summarize_spans(spans)
    assert told == summarize_spans(all_spans), "to the last bit, however the run was cut up"
    expanded = summarize_weighted(gaps["gap_s"], gaps["multiplicity"])
    assert _numbers(told) == pytest.approx(_numbers(expanded), rel=1e-12, nan_ok=True)
    assert told | {"mean": None} == expanded | {"mean": None}


def test_percentiles_of_spans_are_numpys_of_all_gaps() -> None:
    """3 gaps of two sequences that grow by 5 ps, and 4 of one that are alike: 10 10 15 15 20 20, and 12 12 12 12."""
    parts = [GapSpans(*map(np.array, ([10], [5], [3], [2]))), GapSpans(*map(np.array, ([12], [0], [4], [1])))]
    all_s = np.array([10, 10, 15, 15, 20, 20, 12, 12, 12, 12]) * 1e-12
    told = summarize_spans(parts)
    assert told["n"] == 10
    assert [told[f"p{p}"] for p in (50, 90, 95, 99)] == pytest.approx(np.percentile(all_s, [50, 90, 95, 99]).tolist())
    assert (told["max"], told["mean"]) == (20e-12, pytest.approx(all_s.mean()))


def test_a_pool_idles_with_what_the_step_before_left_in_it() -> None:
    """4 blocks for 2 ps, 1 of them for 6 more; with the first eviction, 3 for 2 ps: the means are 14 / 8 and 3."""
    few = FewSteps()
    few.add(stretch(0, 2, during=4, after=1))
    few.add(stretch(8, 10, during=3, after=3, num_evictions=1))
    steps = few.columns()
    assert steps.num_cached_blocks.tolist() == [1.75, 1, 4, 3, 3, 3]
    assert steps.num_evictions.tolist() == [0, 0, 0, 1, 0, 0]
    np.testing.assert_allclose(steps.start_s * PS_PER_S, [0, 8, 8, 8, 10, 10])
    np.testing.assert_allclose(steps.duration_s * PS_PER_S, [8, 0, 0, 2, 0, 0])


def stretch(start_ps: int, end_ps: int, during: int, after: int, num_evictions: int = 0) -> Stretches:
    counts = [during] * 3 + [after] * 3
    return Stretches(*(np.array([number]) for number in (start_ps, end_ps, *counts, num_evictions)))


def test_blocks_times_picoseconds_go_beyond_64_bits() -> None:
    counts, times_ps = np.full(40_000, 2**31 - 1), np.full(40_000, 2**62 + 1)
    times_ps[0] = -3
    assert exact_dot(counts, times_ps) == (2**31 - 1) * (39_999 * (2**62 + 1) - 3)


@pytest.mark.parametrize(("most", "width"), [(127, 1), (128, 2), (-(2**15) - 1, 4), (2**31, 8)])
def test_numbers_are_kept_as_narrow_as_they_fit(most: int, width: int) -> None:
    kept = narrowed(np.array([0, most]))
    assert (kept.itemsize, kept.tolist()) == (width, [0, most])


def test_a_run_may_end_just_when_its_gaps_were_joined():
    """Sixteen parts are joined to one; the sixteenth is what was left at the end."""
    condenser = Condenser(num_plans_at_once=0)
    recorder = Recorder(condenser)
    for _ in range(15):
        condenser.on_done(recorder)
    assert len(condenser.finish(recorder)[1]) == 1
