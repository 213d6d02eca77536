"""A run's steps in fewer rows: stretches of one plan's steps in which no count changes, without a row a step."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from core.recorder import UNEVEN, Recorder, Series

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretches:
    """A row a stretch, in order of time, [num_stretches]; `*_after`: until the next one starts."""

    start_ps: Ints
    end_ps: Ints
    num_referenced_blocks: Ints
    num_cached_blocks: Ints
    num_orphan_blocks: Ints
    num_referenced_blocks_after: Ints
    num_cached_blocks_after: Ints
    num_orphan_blocks_after: Ints
    num_evictions: Ints

    def __len__(self) -> int:
        return len(self.start_ps)

    def part(self, rows: slice) -> Stretches:
        """Only these rows."""
        return Stretches(*(getattr(self, field.name)[rows] for field in fields(self)))


def stretches_of(recorder: Recorder) -> Stretches:
    """The steps of the plans that the recorder holds.

    O(plans + changes of a count); the blocks in use are looked through once, a pass of numpy.
    """
    num_steps = recorder.plan_column("num_steps")
    total, first = int(num_steps.sum()), np.cumsum(num_steps) - num_steps
    referenced = np.array(recorder.step_referenced_blocks)[:total]
    series = (recorder.step_cached_blocks, recorder.step_orphan_blocks, recorder.step_evictions_before_end)
    begins = _begins(first, referenced, series, total)
    cached, orphans, evictions = (each.at(begins) for each in series)
    plan = np.searchsorted(first, begins, side="right") - 1
    start_ps = recorder.plan_column("start_ps")[plan] + _elapsed_ps(recorder, plan, begins - first[plan])
    plan_ends = np.append(plan[1:] != plan[:-1], True) if len(plan) else np.zeros(0, dtype=bool)
    end_ps = np.append(start_ps[1:], 0)[: len(start_ps)]
    end_ps[plan_ends] = recorder.plan_column("start_ps") + _elapsed_ps(recorder, np.arange(len(first)), num_steps)
    used = referenced[begins].astype(np.int64)
    plans = np.arange(len(num_steps))
    return Stretches(
        start_ps=start_ps,
        end_ps=end_ps,
        num_referenced_blocks=used,
        num_cached_blocks=cached,
        num_orphan_blocks=orphans,
        num_referenced_blocks_after=_with_ends(used, plan_ends, recorder.plan_column("referenced_blocks_after")),
        num_cached_blocks_after=_with_ends(cached, plan_ends, recorder.cached_blocks_after.at(plans)),
        num_orphan_blocks_after=_with_ends(orphans, plan_ends, recorder.orphan_blocks_after.at(plans)),
        num_evictions=np.diff(evictions, prepend=recorder.step_evictions_before_end.first),
    )


def _begins(first: Ints, referenced: NDArray[np.int32], series: tuple[Series, ...], total: int) -> Ints:
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
        so_far = np.concatenate([[0], np.cumsum(np.array(recorder.uneven_ps))])
        place = first_ps[listed]
        found[listed] = so_far[place + num_steps[listed]] - so_far[place]
    return np.asarray(found, dtype=np.int64)


def _with_ends(column: Ints, plan_ends: NDArray[np.bool_], plan_column: Ints) -> Ints:
    after = column.copy()
    after[plan_ends] = plan_column
    return after
