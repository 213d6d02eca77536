"""A look-up between plans: how far the run is, and whether Ctrl-C was pressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.interrupt import DeferredInterrupt
from sim.cost_model import CostModel, StepWork

PLANS_A_LOOK = 30


class Stopped(Exception):
    """Ctrl-C came; every scheduler is between two plans, or its plan is in flight."""


class WatchedCost(CostModel):
    """A cost model that looks up every few plans: shows the progress, and stops where Ctrl-C was pressed."""

    def __init__(self, cost: CostModel, interrupt: DeferredInterrupt, show: Callable[[], None]) -> None:
        self._cost = cost
        self._interrupt = interrupt
        self._show = show
        self._num_left = 0  # plans until the next look

    def step_ps(self, work: StepWork) -> int:
        self._num_left -= 1
        if self._num_left < 0:
            self._look_up()
        return self._cost.step_ps(work)

    @property
    def has_even_spans(self) -> bool:
        return self._cost.has_even_spans

    def growth_ps(self, work: StepWork) -> int | None:
        return self._cost.growth_ps(work)

    def decode_span_ps(self, work: StepWork, max_steps: int) -> Sequence[int]:
        self._num_left -= 1
        if self._num_left < 0:
            self._look_up()
        return self._cost.decode_span_ps(work, max_steps)

    def _look_up(self) -> None:
        self._num_left = PLANS_A_LOOK
        if self._interrupt.requested:
            raise Stopped
        self._show()
