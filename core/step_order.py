"""Who is served first in a step: running requests and then the queue, or prompts before all decodes."""

from __future__ import annotations

from core.admission import Admissions
from core.growth import Growth
from core.interfaces import BatchRules
from core.plan import StepPlan
from core.request import Request
from core.running import RunningRequests


class StepOrder:
    """Fills a plan by the batch policy's rules.

    A step that preempted admits nobody, unless `admits_after_preemption`: whoever was just pushed out would come
    straight back.
    """

    def __init__(
        self, running: RunningRequests, growth: Growth, admissions: Admissions, admits_after_preemption: bool
    ) -> None:
        self._running = running
        self._growth = growth
        self._admissions = admissions
        self._admits_after_preemption = admits_after_preemption

    def fill(self, plan: StepPlan, rules: BatchRules) -> None:
        if rules.prompts_alone:
            self._prompts_alone(plan, rules)
        else:
            budget = self._growth.grow(plan, rules)
            if self._may_admit(plan, rules):
                self._admissions.admit(plan, rules, budget)

    def _may_admit(self, plan: StepPlan, rules: BatchRules) -> bool:
        return rules.admits and (self._admits_after_preemption or not plan.preempted)

    def _prompts_alone(self, plan: StepPlan, rules: BatchRules) -> None:
        """Prompts if there are any to compute, else decodes, and with them whoever comes back from host memory.

        A step that preempted admits no prompt here, whatever the switch says: one that never fits beside the decodes
        would begin anew in every step, and they would wait for it for ever.
        """
        budget = self._growth.grow_prefills(plan, rules)
        if rules.admits and not plan.preempted:
            self._admissions.admit(plan, rules, budget, may_come=_has_a_prompt)
        if plan.chunks or plan.late:
            starting = {sequence.rank for sequence in plan.late}  # all of their prompt but a token is cached
            plan.held = self._running.batch.members.keys() - starting
            return
        budget = self._growth.grow(plan, rules)
        if self._admissions.is_anybody_swapped_out and self._may_admit(plan, rules):
            self._admissions.admit(plan, rules, budget, may_come=_is_swapped_out)


def _has_a_prompt(request: Request) -> bool:
    return request.swapped is None


def _is_swapped_out(request: Request) -> bool:
    return request.swapped is not None
