"""What the figures of a run need of its plans, taken while it runs: a run without a row a step keeps no plan."""

from __future__ import annotations

from core.even_plans import even_plans
from core.gap_spans import GapSpans, gap_spans, joined
from core.recorder import PLAN, Recorder
from core.step_totals import StepTotals

_NUM_PLANS_AT_ONCE = 1 << 14
_NUM_STEPS_AT_ONCE = 1 << 17
_NUM_JOINED = 16


class Condenser:
    """Takes plans out of a recorder whenever so many are there, or so many steps. Memory: of the plans taken only
    spans of equal gaps, about 15 bytes each.
    """

    def __init__(self, num_plans_at_once: int = _NUM_PLANS_AT_ONCE) -> None:
        self._num_values_at_once = num_plans_at_once * len(PLAN)
        self._steps = StepTotals()
        self._gaps: list[GapSpans] = []  # few and large, lest a search through them be long
        self._newest_gaps: list[GapSpans] = []

    def on_done(self, recorder: Recorder) -> None:
        """A request of the run is done: a time at which all that was recorded is whole."""
        is_full = len(recorder.plans) >= self._num_values_at_once
        if is_full or recorder.num_steps_begun - recorder.num_steps_taken >= _NUM_STEPS_AT_ONCE:
            self._take(recorder)

    def finish(self, recorder: Recorder) -> tuple[StepTotals, tuple[GapSpans, ...]]:
        """What all steps add up to, and their gaps, when the run has ended."""
        self._take(recorder)
        if self._newest_gaps:
            self._join()
        return self._steps, tuple(self._gaps)

    def _take(self, recorder: Recorder) -> None:
        part, since_ps = recorder.cut(), self._steps.end_ps
        plans = even_plans(part)
        self._steps.add(plans, part)
        self._newest_gaps.append(gap_spans(plans, part.late_gaps_ps, since_ps).narrowed())
        if len(self._newest_gaps) == _NUM_JOINED:
            self._join()

    def _join(self) -> None:
        self._gaps.append(joined(self._newest_gaps).narrowed())
        self._newest_gaps.clear()
