"""A replica whose scheduler decides a step while the one before it still runs."""

from __future__ import annotations

import simpy

from core.plan import StepPlan, StepResult
from core.scheduler import Scheduler
from core.source import Input
from sim.beam_model import NO_DROPS, BeamModel
from sim.cluster import Replica
from sim.executor import CostExecutor


class AsyncReplica(Replica):
    """One plan runs, the next is decided when the last step of the running one begins.

    Of a span only the steps that have begun are decided, and the one after them. An input in its midst therefore first
    ends it with the step that runs, and has the next one decided as of when that step began.
    """

    def __init__(
        self, env: simpy.Environment, scheduler: Scheduler, executor: CostExecutor, beams: BeamModel = NO_DROPS
    ) -> None:
        super().__init__(env, scheduler, executor, beams)
        self._next: StepPlan | None = None
        self._has_decided = False  # about what follows the running plan; it may have been nothing

    def take(self, given: Input) -> None:
        """An arrival or a cancellation, now."""
        if self._plan is not None and not self._has_decided:
            self._end_span(int(self._env.now))
        must_cut = self._hand_over(given)
        if must_cut and self._next is not None:
            self._next.max_steps = 1
        if self._plan is None:
            self._wake_after(0)

    def _end_span(self, now_ps: int) -> None:
        """The span ends with the step that runs at `now_ps`, and the next plan is what was decided when it began."""
        assert self._plan is not None
        end_ps = self._executor.cut(now_ps)
        self._scheduler.extend(self._plan, self._executor.collect())
        self._decide(end_ps - self._executor.collect()[-1])
        self._wake_after(end_ps - now_ps)

    def _decide(self, now_ps: int) -> None:
        """What follows the running plan."""
        self._has_decided = True
        plan = self._scheduler.schedule(now_ps)
        self._next = plan if plan is not None and not plan.is_empty else None
        if plan is not None and plan.rejected:
            self.on_done(plan.rejected, now_ps)

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm is not self._alarm:
            return  # stale
        self._alarm = None
        if self._plan is None:
            self._begin_step()
        elif self._has_decided:
            self._end_plan()
        else:
            self._last_step_begins()

    def _last_step_begins(self) -> None:
        assert self._plan is not None
        durations_ps = self._executor.collect()
        self._scheduler.extend(self._plan, durations_ps)
        self._wake_after(durations_ps[-1])
        self._decide(int(self._env.now))

    def _end_plan(self) -> None:
        assert self._plan is not None
        done = self._scheduler.commit(self._plan, StepResult(self._executor.collect()))
        self._plan = None
        if done:
            self.on_done(done, int(self._env.now))
        if self._next is None:
            self._begin_step()
        else:
            plan, self._next = self._next, None
            plan.start_ps = int(self._env.now)
            self._start(plan)
            self._decide_if_due()

    def _begin_step(self) -> None:
        super()._begin_step()
        self._decide_if_due()

    def _start(self, plan: StepPlan) -> None:
        """The plan runs from now on; of a span, wakes when its last step begins."""
        self._plan = plan
        self._has_decided = False
        end_ps = self._executor.submit(plan)
        last_ps = self._executor.collect()[-1] if len(self._executor.collect()) > 1 else 0
        self._wake_after(end_ps - last_ps - int(self._env.now))

    def _decide_if_due(self) -> None:
        """The first step of a plan may be its last."""
        if self._plan is not None and not self._has_decided and len(self._executor.collect()) == 1:
            self._decide(int(self._env.now))
