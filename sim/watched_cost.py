"""A look-up between plans: for whoever shows how far a run is, or wants to stop it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sim.cost_model import CostModel, StepWork

PLANS_A_LOOK = 30


class WatchedCost(CostModel):
    """A cost model that calls `look_up` before the first plan, and every few plans from then on.

    What `look_up` raises ends the run where every scheduler is between two plans, or its plan is in flight.
    """

    def __init__(self, cost: CostModel, look_up: Callable[[], None]) -> None:
        self._cost = cost
        self._look_up = look_up
        self._num_left = 0  # plans until the next look

    def step_ps(self, work: StepWork) -> int:
        self._count_plan()
        return self._cost.step_ps(work)

    @property
    def least_step_ps(self) -> int:
        return self._cost.least_step_ps

    @property
    def has_even_spans(self) -> bool:
        return self._cost.has_even_spans

    def growth_ps(self, work: StepWork) -> int | None:
        return self._cost.growth_ps(work)

    def decode_span_ps(self, work: StepWork, max_steps: int) -> Sequence[int]:
        self._count_plan()
        return self._cost.decode_span_ps(work, max_steps)

    def _count_plan(self) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            self._num_left = PLANS_A_LOOK
            self._look_up()
