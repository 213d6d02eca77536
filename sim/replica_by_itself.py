"""A replica of a fleet that goes on by itself, up to what may concern it next: no clock is shared with the others."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from core.request import Request
from core.scheduler import Scheduler
from core.source import Input, InputKind
from core.units import NEVER_PS
from sim.beam_model import BeamModel
from sim.executor import CostExecutor
from sim.express import Stop
from sim.fleet_replica import FleetReplica, Instant


class OwnClock(simpy.Environment):
    """Without events: whoever does something sets it to the time of that."""

    now = 0


class OwnInstant(Instant):
    """Of a replica that lags behind the router, up to whose present it catches up."""

    def __init__(self, own: OwnClock, routers: OwnClock) -> None:
        super().__init__(own)
        self._routers = routers

    @property
    def horizon_ps(self) -> int:
        return self._routers.now


class ReplicaByItself(FleetReplica):
    """At `due_ps` what runs ends, or the next step is planned; infinite while it idles. Nobody here is done before.

    `go_on` takes it from there up to `horizon()`. Whoever hands it an input has had it go on up to then. Arrivals that
    are sure to be queued change nothing before the step ends that runs: till then they stand `at_door`, and the replica
    is left alone.
    """

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        executor: CostExecutor,
        beams: BeamModel,
        routers: OwnClock,
        horizon: Callable[[], int],
    ) -> None:
        self._horizon = horizon
        self.clock = OwnClock()
        self.due_ps: int = NEVER_PS
        self._at_door: list[Request] = []
        super().__init__(OwnInstant(self.clock, routers), number, scheduler, executor, beams)

    def _just_now(self) -> int:
        """Of several that are due now each takes its turn."""
        return max(self._horizon(), self.clock.now + 1)

    @property
    def num_queued(self) -> int:
        return len(self._at_door) + len(self._scheduler.waiting)

    def go_on(self) -> None:
        """Takes steps from `due_ps` on."""
        now_ps = self.clock.now = self.due_ps
        if self._at_door:
            self._let_in()
            if self.due_ps > now_ps:
                return  # none of them may join
        self.due_ps = NEVER_PS
        if self._flies or self._plan is not None:
            self._end()
        if self._express is None:
            self._plan_by_rule(now_ps)
            return
        stop, at_ps = self._express.run(now_ps)
        if stop is Stop.FLYING:
            self._flies = True
            self.due_ps = self._express.flight.span_end_ps
        elif stop is not Stop.IDLE:
            self._halt(stop, at_ps)

    def arrive(self, request: Request, now_ps: int) -> None:
        """As `take`, of an arrival that is sure to be queued."""
        if self._plan is not None or self._express is None:
            self.clock.now = now_ps
            self.take(Input(now_ps, InputKind.ARRIVE, request))
            return
        if not self._flies:
            self.due_ps = now_ps
        elif not self._at_door and not self._must_land:
            self.due_ps = self._express.flight.step_end_ps(now_ps)
        self._at_door.append(request)

    def take(self, given: Input) -> None:
        if self._at_door:
            self._let_in()
        super().take(given)

    def _let_in(self) -> None:
        """Those at the door join the queue, as of when they came."""
        at_door, self._at_door = self._at_door, []
        flight = self._express.flight if self._flies and self._express is not None else None
        if flight is not None:
            flight.catch_up(at_door[0].arrival_ps)
        for request in at_door:
            self._scheduler.add(request, request.arrival_ps)
            if flight is not None and self._scheduler.wants_step_now(request):
                self._must_land = True
        if flight is not None:
            self.due_ps = flight.end_ps if self._must_land else flight.span_end_ps

    def _wake_after(self, delay_ps: int) -> None:
        self.due_ps = self.clock.now + delay_ps

    def _plan_soon(self) -> None:
        self.due_ps = self.clock.now
