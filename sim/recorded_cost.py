"""Replays measured step times: the simulator on the engine's own clock."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import InputError
from sim.cost_model import CostModel, StepWork


class RecordedCost(CostModel):
    """`durations_ps[i]` is the measured duration of step i. Spans are slices of it."""

    def __init__(self, durations_ps: Sequence[int]) -> None:
        self._durations_ps = durations_ps

    def step_ps(self, work: StepWork) -> int:
        if work.step >= len(self._durations_ps):
            raise InputError(
                f"step {work.step} was not recorded: the record holds {len(self._durations_ps)} steps, so the runs"
                " have parted before"
            )
        return self._durations_ps[work.step]

    def decode_span_ps(self, work: StepWork, max_steps: int) -> Sequence[int]:
        self.step_ps(work)
        return self._durations_ps[work.step : work.step + max_steps]
