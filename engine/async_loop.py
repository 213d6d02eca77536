"""The engine's loop under async scheduling: a step is decided before the one ahead of it has run."""

from __future__ import annotations

from core.inputs_log import InputsLog
from core.scheduler import Scheduler
from core.source import RequestSource
from engine.clock import EngineClock
from engine.executor import PreparedStep
from engine.loop import EngineLoop, StepExecutor


class AsyncEngineLoop(EngineLoop):
    """Decides what an engine with two steps in flight decides. Nothing overlaps here, since the host waits for the
    device: a step's time holds the decision about the next.
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
        self._next = self._following_step()
        self._run_step(step)
        return True

    def _first_step(self) -> PreparedStep | None:
        plan = self._next_plan()
        return None if plan is None else self._executor.prepare(plan)

    def _following_step(self) -> PreparedStep | None:
        """None where nothing can be decided before the output of the running step is known."""
        plan = self._schedule()
        return None if plan is None or plan.is_empty else self._executor.prepare(plan)
