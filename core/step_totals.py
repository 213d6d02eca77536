"""What the steps of a replica add up to: whole numbers, from which the figures of a run follow by one division."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from core.even_plans import EvenPlans, with_waiting
from core.packing import exact_dot
from core.recorder import Recorder
from core.request_log import RequestLog
from core.stretches import Stretches, stretches_of

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Level:
    """A count of blocks over time; the extremes are None where it never held, be it for no time."""

    block_ps: int = 0  # blocks x picoseconds
    span_ps: int = 0
    least: int | None = None
    most: int | None = None

    def add(self, counts: Ints, times_ps: Ints) -> None:
        """Each count held for its time."""
        if len(counts):
            self.block_ps += exact_dot(counts, times_ps)
            self.span_ps += int(times_ps.sum())
            least, most = int(counts.min()), int(counts.max())
            self.least = least if self.least is None else min(self.least, least)
            self.most = most if self.most is None else max(self.most, most)

    @classmethod
    def total(cls, levels: Sequence[Level]) -> Level:
        """Of all replicas together, each over its own time."""
        least = [each.least for each in levels if each.least is not None]
        most = [each.most for each in levels if each.most is not None]
        block_ps, span_ps = sum(each.block_ps for each in levels), sum(each.span_ps for each in levels)
        return cls(block_ps, span_ps, min(least, default=None), max(most, default=None))

    @property
    def time_mean(self) -> float | None:
        return self.block_ps / self.span_ps if self.span_ps else None


@dataclass(slots=True)
class Load:
    """Counts summed over steps, each times the duration of its step in picoseconds; idle time is none of it."""

    busy_ps: int = 0
    running: int = 0
    referenced_blocks: int = 0
    shared_references: int = 0
    filled_tokens: int = 0
    internal_tokens: int = 0
    external_tokens: int = 0

    def add(self, plans: EvenPlans, stretches: Stretches, of_plans: Bools | slice = slice(None)) -> None:
        """The steps of these plans."""
        num_steps = plans.num_steps[of_plans]
        busy_ps = plans.elapsed_ps(of_plans, num_steps)
        self.busy_ps += int(busy_ps.sum())
        self.running += exact_dot(plans.num_running[of_plans], busy_ps)
        self.filled_tokens += exact_dot(plans.num_filled_tokens[of_plans], busy_ps)
        # Step k of a plan has k times what each adds: times first duration and growth, sums of k and of its square.
        added, sum_k = plans.filled_a_step[of_plans], num_steps * (num_steps - 1) // 2
        self.filled_tokens += exact_dot(added * plans.first_ps[of_plans], sum_k)
        self.filled_tokens += exact_dot(added * plans.growth_ps[of_plans], sum_k * (2 * num_steps - 1) // 3)
        rows = of_plans if isinstance(of_plans, slice) else of_plans[stretches.plan]
        duration_ps = stretches.duration_ps[rows]
        self.referenced_blocks += exact_dot(stretches.num_referenced_blocks[rows], duration_ps)
        self.shared_references += exact_dot(stretches.num_shared_references[rows], duration_ps)
        self.internal_tokens += exact_dot(stretches.num_internal_tokens[rows], duration_ps)
        self.external_tokens += exact_dot(stretches.num_external_tokens[rows], duration_ps)

    @classmethod
    def total(cls, loads: Sequence[Load]) -> Load:
        """Of all replicas together."""
        return cls(*(sum(getattr(each, column.name) for each in loads) for column in fields(cls)))


@dataclass(slots=True)
class StepTotals:
    """Of one replica, taken in part by part. What a step leaves behind holds until the next one starts."""

    start_ps: int | None = None  # None: no step
    end_ps: int = 0
    referenced: Level = field(default_factory=Level)
    cached: Level = field(default_factory=Level)
    orphans: Level = field(default_factory=Level)
    late_cached: Level | None = None  # from the first step that evicts
    load: Load = field(default_factory=Load)
    saturated: Load | None = None  # of the steps in which requests waited; None where nobody counts them
    peak_waste_ratio: float | None = None  # the highest of a step; None where no slot was in use
    _left: tuple[int, int, int] = (0, 0, 0)  # blocks in the three levels, when the newest step had ended

    def add(self, plans: EvenPlans, recorder: Recorder, requests: RequestLog | None = None) -> None:
        """The plans that the recorder holds, which come next in time. `requests`: all that arrived in the whole run."""
        if not len(plans):
            return
        if requests is None:
            stretches = stretches_of(recorder, plans)
        else:
            plans, num_waiting = with_waiting(plans, requests, recorder.decides_ahead)
            stretches = stretches_of(recorder, plans)
            self.saturated = self.saturated or Load()
            self.saturated.add(plans, stretches, num_waiting > 0)
        self.load.add(plans, stretches)
        self._add_peak(plans, stretches, recorder.block_size)
        self._add_levels(plans, stretches, self._first_late(recorder, stretches))

    def _first_late(self, recorder: Recorder, stretches: Stretches) -> int:
        """The first stretch by which blocks were evicted."""
        evicting = recorder.step_evictions_before_end.places
        if self.late_cached is not None:
            return 0
        return int(np.searchsorted(stretches.place, evicting[0])) if len(evicting) else len(stretches.place)

    def _add_levels(self, plans: EvenPlans, stretches: Stretches, late: int) -> None:
        """What a plan leaves behind holds until the next one starts, and that of the last plan for no time yet."""
        since_ps, ends_ps = plans.start_ps[:1] - self.end_ps, plans.end_ps
        idle_ps = np.append(plans.start_ps[1:], ends_ps[-1:]) - ends_ps
        during = (stretches.num_referenced_blocks, stretches.num_cached_blocks, stretches.num_orphan_blocks)
        after = (plans.referenced_blocks_after, plans.cached_blocks_after, plans.orphan_blocks_after)
        left = [np.array([blocks]) for blocks in self._left]
        for number, level in enumerate((self.referenced, self.cached, self.orphans)):
            if self.start_ps is not None:
                level.add(left[number], since_ps)
            level.add(during[number], stretches.duration_ps)
            level.add(after[number], idle_ps)
        if late < len(stretches.place):
            if self.late_cached is None:
                self.late_cached = Level()
            else:
                self.late_cached.add(left[1], since_ps)
            self.late_cached.add(stretches.num_cached_blocks[late:], stretches.duration_ps[late:])
            self.late_cached.add(after[1][stretches.plan[late] :], idle_ps[stretches.plan[late] :])
        self.start_ps = int(plans.start_ps[0]) if self.start_ps is None else self.start_ps
        self.end_ps = int(ends_ps[-1])
        self._left = int(after[0][-1]), int(after[1][-1]), int(after[2][-1])

    def _add_peak(self, plans: EvenPlans, stretches: Stretches, block_size_tokens: int) -> None:
        """Within a stretch the first step wastes most: each further one fills more slots."""
        num_earlier, plan = stretches.num_earlier_steps, stretches.plan
        filled = plans.num_filled_tokens[plan] + plans.filled_a_step[plan] * num_earlier
        taken = stretches.num_referenced_blocks * block_size_tokens + stretches.num_external_tokens
        in_use = taken > 0
        if not in_use.all():
            taken, filled = taken[in_use], filled[in_use]
        if len(taken):
            peak = float(((taken - filled) / taken).max())
            self.peak_waste_ratio = peak if self.peak_waste_ratio is None else max(self.peak_waste_ratio, peak)
