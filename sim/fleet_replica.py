"""A replica among others on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import simpy
from simpy.events import NORMAL, URGENT, EventPriority

from core.block_tables import BlockTables
from core.durations import total_ps
from core.id_tables import IdTables
from core.request import Request
from core.scheduler import Scheduler
from core.source import Input, InputKind
from core.units import NEVER_PS
from sim.beam_model import BeamModel
from sim.cluster import Replica
from sim.executor import CostExecutor
from sim.express import Express, Stop


class Phase(IntEnum):
    """What comes after what within one instant, so that it does not depend on how steps were grouped into spans.

    The values are priorities of SimPy's events. Replica n plans at PLANS + n; AFTER_PLANS stands for what comes last.
    """

    INPUTS = URGENT
    STEPS_END = NORMAL
    FOLLOW_UPS = 2  # what the ends of steps set free
    PLANS = 3
    AFTER_PLANS = 1 << 30  # what a rejection at planning sets free


class Moment(simpy.Event):
    """Calls back later within this instant."""

    def __init__(self, env: simpy.Environment, priority: int, call: Callable[[], None]) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        self.callbacks.append(lambda event: call())
        env.schedule(self, EventPriority(priority))


class Instant:
    """How far the present instant has come, told by whoever hands inputs to replicas."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.phase = Phase.INPUTS

    @property
    def horizon_ps(self) -> int:
        """Steps that begin before this have begun."""
        return int(self.env.now) + (self.phase is Phase.AFTER_PLANS)

    def is_over(self) -> bool:
        """Is nothing else to happen within it?"""
        return self.env.peek() > self.env.now


class FleetReplica(Replica):
    """Ends its steps before any replica plans, and plans when all inputs of the instant are in.

    Where other replicas have events all the time, a look ahead to the next one would end each span after a step. So a
    span of plain steps flies to its end, and takes the blocks of its steps when somebody asks for them.
    """

    def __init__(
        self, instant: Instant, number: int, scheduler: Scheduler, executor: CostExecutor, beams: BeamModel
    ) -> None:
        super().__init__(instant.env, scheduler, executor, beams)
        self._instant = instant
        self._number = number
        self._is_due = False  # to plan within this instant
        tables = self._tables = scheduler.tables
        self._beginnings_are_known = type(tables) in (BlockTables, IdTables) and tables.num_groups == 1
        self.is_planning = False
        if self._express is not None:
            self._express = Express(scheduler, executor.cost, self._just_now, self._tell)

    def _just_now(self) -> int:
        """Nobody knows what comes after this instant."""
        return int(self._env.now) + 1

    def _tell(self, requests: list[Request], now_ps: int) -> None:
        self.on_done(requests, now_ps)

    def make_up(self) -> None:
        """Whatever was due has been done: there was an event for it."""

    def catch_up(self) -> None:
        """Steps that have begun take their blocks."""
        self.make_up()
        self._catch_up()

    def _catch_up(self) -> None:
        if self._flies:
            assert self._express is not None
            self._express.flight.catch_up(self._instant.horizon_ps)
        elif self._plan is not None:
            self._scheduler.extend(self._plan, self._executor.begun(self._instant.horizon_ps))

    @property
    def num_queued(self) -> int:
        """Requests that wait here."""
        self.make_up()
        return len(self._scheduler.waiting)

    @property
    def num_running(self) -> int:
        self.make_up()
        return len(self._scheduler.running)

    @property
    def routers_ps(self) -> int:
        """The router's present."""
        return int(self._env.now)

    def num_referenced_at_least(self, now_ps: int) -> int:
        """Blocks held now, the router's present, or fewer: until it ends, a span that flies but takes some. What else
        runs catches up.
        """
        self.make_up()
        if not self._flies:
            self._catch_up()
        return self._tables.pool.num_referenced

    def has_nothing_of(self, request: Request) -> bool:
        """Whether not even the beginning of its prompt is cached here now, as far as that can be told without catching
        up. What flies publishes no beginnings, where every prompt fills a block; and it may evict, but that is no more.
        """
        self.make_up()
        is_settled = self._beginnings_are_known and (self._flies or self._plan is None)
        return is_settled and not self._tables.has_beginning(request)

    def take(self, given: Input) -> None:
        """An arrival or a cancellation, now."""
        self._catch_up()
        if self._instant.phase is Phase.FOLLOW_UPS and self._step_ends_now():
            self._end()
        if self._flies and given.kind is InputKind.CANCEL:
            self._make_a_plan()
        must_cut = self._hand_over(given)
        if self._flies:
            if must_cut and not self._must_land:
                self._must_land = True
                self._wake_at_end_of_step()
        elif self._plan is None:
            self._plan_soon()
        elif must_cut:
            self._wake_after(self._executor.cut(self._instant.horizon_ps) - int(self._env.now))

    def _wake_at_end_of_step(self) -> None:
        assert self._express is not None
        self._alarm = None
        self._wake_after(self._express.flight.end_ps - int(self._env.now))

    def _step_ends_now(self) -> bool:
        """Is this a boundary within its span? As single steps, it would have ended before. The span is cut there."""
        now_ps = int(self._env.now)
        if self._flies:
            assert self._express is not None
            self._must_land = self._must_land or self._express.flight.end_ps == now_ps
            return self._express.flight.end_ps == now_ps
        if self._plan is None or self._plan.start_ps + total_ps(self._executor.begun(now_ps)) != now_ps:
            return False
        self._executor.cut(now_ps)
        return True

    def _end(self) -> None:
        """What runs ends now."""
        self._alarm = None
        if not self._flies:
            self._end_plan()
            return
        assert self._express is not None
        if not self._must_land:
            self._express.flight.catch_up(NEVER_PS)
        self._flies = self._must_land = False
        self._express.land()

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm is not self._alarm:
            return  # stale: the span was cut
        self._end()
        if self._instant.is_over() and not self._is_due:
            self._plan_now()
        else:
            self._plan_soon()

    def _plan_soon(self) -> None:
        """Once all inputs of this instant are in, and all steps that end with it have ended."""
        if not self._is_due:
            self._is_due = True
            Moment(self._env, Phase.PLANS + self._number, self._plan_now)

    def _plan_now(self) -> None:
        self._is_due = False
        self.is_planning = True
        self._begin_step()
        self.is_planning = False

    def _halt(self, stop: Stop, at_ps: int) -> None:
        assert self._express is not None
        super()._halt(stop, self._express.flight.span_end_ps if stop is Stop.FLYING else at_ps)
