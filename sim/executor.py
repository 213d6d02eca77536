"""Carries plans out on the virtual clock: submits a span, and cuts it where something from outside ends it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from core.plan import StepPlan
from sim.cost_model import CostModel, work_of


class CostExecutor:
    """One plan in flight. Steps of a span end at whole step boundaries only."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._durations_ps: Sequence[int] = ()
        self._ends_ps: list[int] = []  # of the steps, from the start of the span; made when first asked for
        self._start_ps = 0

    def submit(self, plan: StepPlan) -> int:
        """Starts the plan's span and returns when it ends."""
        work = work_of(plan)
        self._start_ps = plan.start_ps
        if plan.max_steps == 1:
            self._durations_ps = (self._cost.step_ps(work),)
        else:
            self._durations_ps = self._cost.decode_span_ps(work, plan.max_steps)
        self._ends_ps = []
        return self._start_ps + sum(self._durations_ps)

    def begun(self, now_ps: int) -> Sequence[int]:
        """Durations of the steps that had begun before `now_ps`: at least the first, at most the whole span."""
        if not self._ends_ps:
            self._ends_ps = list(accumulate(self._durations_ps))
        num_begun = bisect_left(self._ends_ps, now_ps - self._start_ps) + 1
        return self._durations_ps[:num_begun]

    def cut(self, now_ps: int) -> int:
        """Ends the span at the first step boundary at or after `now_ps`, and returns it."""
        self._durations_ps = self.begun(now_ps)
        del self._ends_ps[len(self._durations_ps) :]
        return self._start_ps + self._ends_ps[-1]

    def collect(self) -> Sequence[int]:
        """Durations of the span's steps, in picoseconds, once it has ended."""
        return self._durations_ps
