"""A run without a row a step: the same figures from stretches, a few rows, and gaps in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from workloads import Workload, workloads
from world import Run, simulate

from core.columns import gap_arrays
from core.gap_spans import GapSpans, gap_spans, summarize_spans
from core.metrics import Records, RequestColumns, StepColumns, compute_metrics
from core.percentiles import summarize_weighted
from core.stretches import condensed, stretch_columns


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


@settings(max_examples=80, deadline=None, derandomize=True, phases=[Phase.generate])
@given(workload=workloads())
def test_a_few_rows_tell_what_all_steps_tell(workload: Workload) -> None:
    run = simulate(workload.trace, workload.settings, workload.cost, workload.arrivals, workload.concurrency)
    expected = figures(run, StepColumns.of(run.step_arrays()))
    stretches = stretch_columns(run.scheduler.recorder)
    assert figures(run, stretches) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    few = condensed(stretches)
    assert len(few.start_s) <= 6
    assert figures(run, few) == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert int(few.num_evictions.sum()) == run.scheduler.tables.pool.num_evictions

    gaps = gap_arrays(run.scheduler.recorder)
    told = summarize_spans([gap_spans(run.scheduler.recorder)])
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


def test_a_mean_of_equal_counts_is_that_count() -> None:
    """5 blocks for 0.9 s and for 0.8 s: a sum of floats makes it 4.999..., and the least of whole blocks would be 4."""
    five, none, evicted = np.full(2, 5), np.zeros(2, dtype=np.int64), np.array([1, 0])
    start_s, duration_s = np.array([0.0, 0.9]), np.array([0.9, 0.8])
    few = condensed(StepColumns(start_s, duration_s, five, five, evicted, none, five, five, none))
    assert few.num_cached_blocks.tolist() == [5.0, 5.0, 5.0]
