"""A run's steps in fewer rows: stretches of one plan's steps in which no count changes, without a row a step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.metrics import StepColumns
from core.recorder import UNEVEN, Recorder, Series
from core.units import PS_PER_S

Ints = NDArray[np.int64]


def stretch_columns(recorder: Recorder) -> StepColumns:
    """As the columns of all steps, a row a stretch: the same time means, peaks and sums of evictions.

    O(plans + changes of a count); the blocks in use are looked through once, a pass of numpy.
    """
    num_steps = recorder.plan_column("num_steps")
    total, first = int(num_steps.sum()), np.cumsum(num_steps) - num_steps
    referenced = _ints(recorder.step_referenced_blocks)[:total]
    series = (recorder.step_cached_blocks, recorder.step_orphan_blocks, recorder.step_evictions_before_end)
    begins = _begins(first, referenced, series, total)
    cached, orphans, evictions = (each.at(begins) for each in series)
    plan = np.searchsorted(first, begins, side="right") - 1
    start_ps = recorder.plan_column("start_ps")[plan] + _elapsed_ps(recorder, plan, begins - first[plan])
    plan_ends = np.append(plan[1:] != plan[:-1], True) if len(plan) else np.zeros(0, dtype=bool)
    end_ps = np.append(start_ps[1:], 0)[: len(start_ps)]
    end_ps[plan_ends] = recorder.plan_column("start_ps") + _elapsed_ps(recorder, np.arange(len(first)), num_steps)
    used = referenced[begins]
    plans = np.arange(recorder.num_plans)
    return StepColumns(
        start_s=start_ps / PS_PER_S,
        duration_s=(end_ps - start_ps) / PS_PER_S,
        num_referenced_blocks=used,
        num_cached_blocks=cached,
        num_evictions=np.diff(evictions, prepend=0),
        num_orphan_blocks=orphans,
        num_referenced_blocks_after=_with_ends(used, plan_ends, recorder.plan_column("referenced_blocks_after")),
        num_cached_blocks_after=_with_ends(cached, plan_ends, recorder.cached_blocks_after.at(plans)),
        num_orphan_blocks_after=_with_ends(orphans, plan_ends, recorder.orphan_blocks_after.at(plans)),
    )


def condensed(steps: StepColumns) -> StepColumns:
    """At most six rows with the same time means, peaks, and least and mean since the first eviction.

    Before the first eviction, and since: a row with all the time and the means, and two without time for the extremes.
    """
    if not steps.start_s.size:
        return steps
    late = steps.since_first_eviction()
    num_early = len(steps.start_s) - len(late.start_s)
    early = steps.where(np.arange(len(steps.start_s)) < num_early)
    end_s = float(steps.start_s[-1] + steps.duration_s[-1])
    middle_s = float(late.start_s[0]) if late.start_s.size else end_s
    rows = [*_rows(early, middle_s), *_rows(late, end_s)]
    start_s, duration_s, referenced, cached, orphans, evictions = np.array(rows, dtype=np.float64).T
    return StepColumns(start_s, duration_s, referenced, cached, evictions, orphans, referenced, cached, orphans)


def _rows(steps: StepColumns, end_s: float) -> list[list[float]]:
    """(start, duration, referenced, cached, orphans, evictions) of the rows that stand for these steps."""
    if not steps.start_s.size:
        return []
    start_s = float(steps.start_s[0])
    pairs = (
        (steps.num_referenced_blocks, steps.num_referenced_blocks_after),
        (steps.num_cached_blocks, steps.num_cached_blocks_after),
        (steps.num_orphan_blocks, steps.num_orphan_blocks_after),
    )
    idle_s = np.append(steps.start_s[1:], end_s) - steps.start_s - steps.duration_s
    span_s = end_s - start_s
    means = [float(np.dot(during, steps.duration_s) + np.dot(after, idle_s)) / span_s for during, after in pairs]
    least = [float(min(during.min(), after.min())) for during, after in pairs]
    most = [float(max(during.max(), after.max())) for during, after in pairs]
    # A sum of floats may put the mean of equal counts just outside of them, where it would count as the least.
    means = [min(max(mean, low), high) for mean, low, high in zip(means, least, most, strict=True)]
    num_evictions = int(steps.num_evictions.sum())
    return [
        [start_s, span_s, *means, num_evictions],
        [end_s, 0.0, *least, 0],
        [end_s, 0.0, *most, 0],
    ]


def _begins(first: Ints, referenced: Ints, series: tuple[Series, ...], total: int) -> Ints:
    """Where stretches begin: with plans, and where a count changes."""
    is_begin = np.append(np.zeros(min(total, 1), dtype=bool), referenced[1:] != referenced[:-1])
    for places in (first, *(each.places for each in series)):
        is_begin[places[places < total]] = True
    return np.flatnonzero(is_begin)


def _elapsed_ps(recorder: Recorder, plan: Ints, num_steps: Ints) -> Ints:
    """How long the first `num_steps` steps of each plan took."""
    first_ps, growth_ps = recorder.plan_column("first_ps")[plan], recorder.plan_column("growth_ps")[plan]
    listed = growth_ps == UNEVEN
    found = np.where(listed, 0, first_ps * num_steps + growth_ps * (num_steps * (num_steps - 1) // 2))
    if listed.any():
        so_far = np.concatenate([[0], np.cumsum(_ints(recorder.uneven_ps))])
        place = first_ps[listed]
        found[listed] = so_far[place + num_steps[listed]] - so_far[place]
    return np.asarray(found, dtype=np.int64)


def _with_ends(column: Ints, plan_ends: NDArray[np.bool_], plan_column: Ints) -> Ints:
    after = column.copy()
    after[plan_ends] = plan_column
    return after


def _ints(column: object) -> Ints:
    return np.array(column, dtype=np.int64)
