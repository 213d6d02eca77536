"""Carries plans out on the virtual clock: submits a span, and cuts it where something from outside ends it."""

from __future__ import annotations

from collections.abc import Sequence

from core.durations import num_begun, total_ps
from core.plan import StepPlan
from sim.cost_model import CostModel, work_of


class CostExecutor:
    """One plan in flight. Steps of a span end at whole step boundaries only."""

    def __init__(self, cost: CostModel) -> None:
        self.cost = cost
        self._durations_ps: Sequence[int] = ()
        self._start_ps = 0

    def submit(self, plan: StepPlan) -> int:
        """Starts the plan's span and returns when it ends."""
        work = work_of(plan)
        self._start_ps = plan.start_ps
        if plan.max_steps == 1:
            self._durations_ps = (self.cost.step_ps(work),)
        else:
            self._durations_ps = self.cost.decode_span_ps(work, plan.max_steps)
            plan.is_unpriced = len(self._durations_ps) == 1
        return self._start_ps + total_ps(self._durations_ps)

    def resume(self, plan: StepPlan, durations_ps: Sequence[int]) -> None:
        """Takes over a span that is under way, and has been priced."""
        self._start_ps, self._durations_ps = plan.start_ps, durations_ps

    def begun(self, now_ps: int) -> Sequence[int]:
        """Durations of the steps that had begun before `now_ps`: at least the first, at most the whole span."""
        return self._durations_ps[: num_begun(self._durations_ps, now_ps - self._start_ps)]

    def cut(self, now_ps: int) -> int:
        """Ends the span at the first step boundary at or after `now_ps`, and returns it."""
        self._durations_ps = self.begun(now_ps)
        return self._start_ps + total_ps(self._durations_ps)

    def collect(self) -> Sequence[int]:
        """Durations of the span's steps, in picoseconds, once it has ended."""
        return self._durations_ps
