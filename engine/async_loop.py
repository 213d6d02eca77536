"""The engine's loop under async scheduling: a step is decided before the one ahead of it has run."""

from __future__ import annotations

from core.inputs_log import InputsLog
from core.scheduler import Scheduler
from core.source import RequestSource
from engine.clock import EngineClock
from engine.executor import PreparedStep
from engine.loop import EngineLoop, StepExecutor


class AsyncEngineLoop(EngineLoop):
    """Two steps are in flight: one runs, the next is decided, prepared, and given to the device behind it, before the
    output of the first is waited for. On a device that computes by itself the decision costs no time of its own; on a
    CPU a step's time holds the decision about the next.
    """

    def __init__(
        self,
        source: RequestSource,
        scheduler: Scheduler,
        executor: StepExecutor,
        clock: EngineClock,
        inputs_log: InputsLog,
    ) -> None:
        super().__init__(source, scheduler, executor, clock, inputs_log)
        self._next: PreparedStep | None = None

    def _advance(self) -> bool:
        self._take_inputs(self.now_ps)
        step = self._next or self._first_step()
        if step is None:
            return self._jump_to_next_input()
        step.plan.start_ps = self.now_ps
        self._executor.begin(step)
        self._next = self._following_step()
        if self._next is not None:
            self._executor.begin(self._next)
        self._run_step(step)
        return True

    def _first_step(self) -> PreparedStep | None:
        plan = self._next_plan()
        return None if plan is None else self._executor.prepare(plan)

    def _following_step(self) -> PreparedStep | None:
        """None where nothing can be decided before the output of the running step is known."""
        plan = self._schedule()
        return None if plan is None or plan.is_empty else self._executor.prepare(plan)
