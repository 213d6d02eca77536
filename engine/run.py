"""One engine run, from its first input to its last."""

from __future__ import annotations

from typing import NamedTuple

from core.inputs_log import InputsLog
from core.scheduler import Scheduler
from core.source import RequestSource
from engine.async_loop import AsyncEngineLoop
from engine.clock import EngineClock
from engine.loop import EngineLoop, StepExecutor, run_by_turns


class EngineRun(NamedTuple):
    """When the run ended on its own time, and whether the user stopped it before its source was exhausted."""

    end_ps: int
    interrupted: bool


def new_loop(
    source: RequestSource, scheduler: Scheduler, executor: StepExecutor, clock: EngineClock, inputs_log: InputsLog
) -> EngineLoop:
    """The loop that drives this scheduler. Raises InputError for one that the engine cannot follow."""
    kind = AsyncEngineLoop if scheduler.config.async_scheduling else EngineLoop
    return kind(source, scheduler, executor, clock, inputs_log)


def run_engine(
    source: RequestSource, scheduler: Scheduler, executor: StepExecutor, clock: EngineClock, inputs_log: InputsLog
) -> EngineRun:
    """Replays the source to its end, or to the first Ctrl-C. Raises InputError for a scheduler it cannot follow."""
    loop = new_loop(source, scheduler, executor, clock, inputs_log)
    interrupted = run_by_turns([loop], [1])
    return EngineRun(loop.now_ps, interrupted)
