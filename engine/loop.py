"""The engine's loop: the same inputs, scheduler and order of events as the simulator's replica, on a real clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.errors import InputError
from core.inputs_log import InputsLog
from core.plan import StepPlan, StepResult
from core.scheduler import Scheduler
from core.source import InputKind, RequestSource
from engine.clock import EngineClock
from engine.executor import PreparedStep, StepOutput
from engine.interrupt import DeferredInterrupt


class StepExecutor(Protocol):
    """Carries a plan out: `prepare` when it is scheduled, `run` when its turn has come; returns when it is done.

    `begin`, before `run`, lets a device start that computes by itself.
    """

    def prepare(self, plan: StepPlan) -> PreparedStep: ...

    def begin(self, step: PreparedStep) -> None: ...

    def run(self, step: PreparedStep) -> StepOutput: ...


def run_by_turns(loops: Sequence[EngineLoop], num_steps_a_turn: Sequence[int]) -> bool:
    """Advances several runs by turns of so many steps each, every one on its own clock, which stands still meanwhile.

    Whatever slows the machine then slows all of them alike. Returns whether the user stopped them (Ctrl-C).
    """
    alive = list(zip(loops, num_steps_a_turn, strict=True))
    with DeferredInterrupt() as interrupt:
        while alive and not interrupt.requested:
            alive = [(loop, num_steps) for loop, num_steps in alive if loop.take_turn(num_steps)]
    return interrupt.requested


class EngineLoop:
    """One engine run in progress.

    Run time is contiguous: a step lasts from the end of the step before to its own end, scheduling included, and idle
    time is jumped over. Inputs that fall into a step, or tie with its end, reach the scheduler before it is committed.
    Everything that happened is in the scheduler's log and recorder; `inputs_log` holds what the simulator needs to
    repeat it.
    """

    def __init__(
        self,
        source: RequestSource,
        scheduler: Scheduler,
        executor: StepExecutor,
        clock: EngineClock,
        inputs_log: InputsLog,
    ) -> None:
        """Raises InputError for a scheduler that the engine cannot follow."""
        _require_supported(scheduler)
        self.now_ps = 0
        self._source = source
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._inputs_log = inputs_log
        self._mark_ps = 0  # of the clock, at `now_ps`
        self._spent_ps = 0  # since `now_ps`, in turns before this one

    def take_turn(self, num_steps: int) -> bool:
        """Up to `num_steps` steps. Returns whether anything is left to do."""
        self._mark_ps = self._clock.read_ps() - self._spent_ps
        is_alive = True
        for _ in range(num_steps):
            is_alive = is_alive and self._advance()
        self._spent_ps = self._clock.read_ps() - self._mark_ps
        self._clock.probe_if_due(self.now_ps)
        return is_alive

    def _advance(self) -> bool:
        """One step, or a jump to the next input where nothing can be computed. Returns whether anything was left."""
        self._take_inputs(self.now_ps)
        plan = self._next_plan()
        if plan is not None:
            self._run_step(self._executor.prepare(plan))
            return True
        return self._jump_to_next_input()

    def _jump_to_next_input(self) -> bool:
        """Returns whether there is one."""
        next_ps = self._source.next_ps()
        if next_ps is None:
            return False
        self.now_ps = next_ps
        self._mark_ps = self._clock.read_ps()
        return True

    def _take_inputs(self, until_ps: int) -> None:
        for time_ps, kind, request in self._source.pop_due(until_ps):
            if kind is InputKind.ARRIVE:
                self._inputs_log.arrived(time_ps, request.request_id)
                if not self._scheduler.add(request, time_ps):
                    self._source.on_done(request, time_ps)
            else:
                self._inputs_log.cancelled(time_ps, request.request_id)
                self._scheduler.cancel(request, time_ps)
                self._source.on_done(request, time_ps)

    def _next_plan(self) -> StepPlan | None:
        """A plan with work in it; None where the scheduler has none until something comes in."""
        plan = self._schedule()
        while plan is not None and plan.is_empty and plan.preempted:
            plan = self._schedule()
        return None if plan is None or plan.is_empty else plan

    def _schedule(self) -> StepPlan | None:
        plan = self._scheduler.schedule(self.now_ps)
        for request in plan.rejected if plan is not None else ():
            self._source.on_done(request, self.now_ps)
        return plan

    def _run_step(self, step: PreparedStep) -> None:
        plan = step.plan
        output = self._executor.run(step)
        reading_ps = self._clock.read_ps()
        duration_ps = max(1, reading_ps - self._mark_ps)
        self._mark_ps = reading_ps
        self._inputs_log.ran(plan.step, plan.start_ps, duration_ps)
        if output.parents:
            self._inputs_log.forked(plan.step, output.parents)
        end_ps = plan.start_ps + duration_ps
        self._take_inputs(end_ps)
        for request in self._scheduler.commit(plan, StepResult((duration_ps,), *output)):
            if request.num_produced_tokens < request.num_output_tokens * request.num_samples:
                self._inputs_log.stopped(request.request_id, request.num_produced_tokens)
            self._source.on_done(request, end_ps)
        self.now_ps = end_ps


def _require_supported(scheduler: Scheduler) -> None:
    config = scheduler.config
    if not config.single_steps:
        raise InputError("the engine runs one step at a time: build its scheduler with single_steps")
    if config.keep_cancelled_registrations:
        raise InputError(
            "keep_cancelled_registrations leaves blocks in the prefix index that were never computed;"
            " the engine would read them"
        )
    if scheduler.tables.pool.num_blocks is None:
        raise InputError("the engine's KV memory is finite: set pool.num_blocks to a number")
