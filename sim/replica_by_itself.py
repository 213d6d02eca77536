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
from sim.flight import Flight

_MOST_LOOKED_AT = 8  # of those that wait


class OwnClock(simpy.Environment):
    """Without events: whoever does something sets it to the time of that."""

    now = 0


class ReplicaByItself(FleetReplica):
    """At `due_ps` what runs ends, or the next step is planned; infinite while it idles. Nobody here is done before
    `turn_ps`, whoever may come.

    `go_on` takes it from there up to `horizon()`. Arrivals that are sure to be queued change nothing before the step
    ends that runs: till then they stand at the door, in order, and the replica is left alone. Where nobody is told of
    more than ends (`least_step_ps` is above 0: no step is shorter) it is left alone until `turn_ps`, and then makes up
    for all that was due. Who looks at it before, or hands it another input, has it make up for that, too.
    """

    def __init__(
        self,
        number: int,
        scheduler: Scheduler,
        executor: CostExecutor,
        beams: BeamModel,
        routers: OwnClock,
        horizon: Callable[[], int],
        least_step_ps: int,
    ) -> None:
        self._horizon = horizon
        self._routers = routers
        self._least_step_ps = least_step_ps
        self.clock = OwnClock()
        self.due_ps: int = NEVER_PS
        self.turn_ps: int = NEVER_PS
        self._has_moved = True
        self._num_seen = 0  # blocks held when somebody last saw: no fewer are, unless it has moved
        self._at_door: list[Request] = []
        self._fewest_at_door = 0  # output tokens of one of them
        super().__init__(Instant(self.clock), number, scheduler, executor, beams)

    def _just_now(self) -> int:
        """Of several that are due now each takes its turn."""
        until_ps = max(self._horizon(), self.clock.now + 1)
        return min(until_ps, self._at_door[0].arrival_ps) if self._at_door else until_ps

    # ---- what a router sees -----------------------------------------------------------------------------------------

    @property
    def num_queued(self) -> int:
        self.make_up()
        return len(self._at_door) + len(self._scheduler.waiting)

    @property
    def routers_ps(self) -> int:
        return int(self._routers.now)

    def num_referenced_at_least(self, now_ps: int) -> int:
        """As of old while nothing was due here: a look at a replica costs more than what is remembered of it."""
        if self._has_moved or self.due_ps < now_ps or self._plan is not None:
            self._num_seen = super().num_referenced_at_least(now_ps)
            self._has_moved = False
        return self._num_seen

    def catch_up(self) -> None:
        super().catch_up()
        self._num_seen = self._tables.pool.num_referenced

    def make_up(self) -> None:
        """What was due before the router's present is done now."""
        while self.due_ps < self._routers.now:
            self._take_one()
        self.clock.now = self._routers.now

    # ---- from one thing that is due to the next ---------------------------------------------------------------------

    def go_on(self) -> None:
        """Its turn has come."""
        while self.due_ps <= self.turn_ps or self.due_ps < self._horizon():
            self._take_one()
        self._wait_for_turn()

    def _take_one(self) -> None:
        """What is due next."""
        self._has_moved = True
        now_ps = self.clock.now = self.due_ps
        if self._at_door and self._at_door[0].arrival_ps <= now_ps:
            self._let_in(now_ps)
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
        if self._at_door:
            self._look_at_door()

    def _look_at_door(self) -> None:
        """The first there has come, or will have, when the step ends that runs then."""
        assert self._express is not None
        first_ps = self._at_door[0].arrival_ps
        if self._flies:
            self.due_ps = min(self.due_ps, self._express.flight.step_end_ps(first_ps))
        elif self._plan is None:
            self.due_ps = min(self.due_ps, first_ps)
        while self._plan is not None and self._at_door and self._at_door[0].arrival_ps <= self.due_ps:
            request = self._at_door.pop(0)
            self.clock.now = request.arrival_ps
            super().take(Input(request.arrival_ps, InputKind.ARRIVE, request))

    # ---- inputs -----------------------------------------------------------------------------------------------------

    def arrive(self, request: Request, now_ps: int) -> None:
        """As `take`, of an arrival that is sure to be queued."""
        if self._plan is not None or self._express is None:
            self.take(Input(now_ps, InputKind.ARRIVE, request))
            return
        if not self._at_door:
            if not self._flies:
                self.due_ps = min(self.due_ps, now_ps)
            elif not self._must_land:
                self.due_ps = self._express.flight.step_end_ps(now_ps)
        num_output = request.num_output_tokens
        self._fewest_at_door = min(self._fewest_at_door, num_output) if self._at_door else num_output
        self._at_door.append(request)
        self._wait_for_turn()

    def take(self, given: Input) -> None:
        self._has_moved = True
        self.make_up()
        if self._at_door:
            self._let_in(given.time_ps)
        super().take(given)
        self._wait_for_turn()

    def _let_in(self, now_ps: int) -> None:
        """Those at the door by now join the queue, as of when they came."""
        at_door = self._at_door
        flight = self._express.flight if self._flies and self._express is not None else None
        if flight is not None:
            flight.catch_up(at_door[0].arrival_ps)
        num_in = 0
        while num_in < len(at_door) and at_door[num_in].arrival_ps <= now_ps:
            request = at_door[num_in]
            self._scheduler.add(request, request.arrival_ps)
            if flight is not None and self._scheduler.wants_step_now(request):
                self._must_land = True
            num_in += 1
        del at_door[:num_in]
        if flight is not None:
            self.due_ps = flight.end_ps if self._must_land else flight.span_end_ps
        if at_door:
            self._fewest_at_door = min([request.num_output_tokens for request in at_door])
            self._look_at_door()

    def open_door(self) -> None:
        """Nothing happens any more. Whoever stands at the door joins the queue."""
        for request in self._at_door:
            self._scheduler.add(request, request.arrival_ps)
        self._at_door.clear()

    def _wake_after(self, delay_ps: int) -> None:
        self.due_ps = self.clock.now + delay_ps

    def _plan_soon(self) -> None:
        self.due_ps = self.clock.now

    # ---- until when nobody is done ----------------------------------------------------------------------------------

    def _wait_for_turn(self) -> None:
        """A sequence gets one token in a step: from the first thing that is due on, who is nearest to the last takes so
        many steps more.
        """
        self.turn_ps = self.due_ps
        if self._least_step_ps and self.due_ps < NEVER_PS and self._plan is None and self._express is not None:
            self.turn_ps += self._least_step_ps * self._fewest_left(self._express.flight)

    def _fewest_left(self, flight: Flight) -> int:
        """Tokens that somebody lacks at `due_ps`, or fewer."""
        running, waiting, num_left = self._scheduler.running, self._scheduler.waiting.entries, NEVER_PS
        if running.batch.members:
            num_left = running.batch.steps_to_next_end()
            if self._flies:
                num_left -= flight.num_begun(self.due_ps) - flight.num_steps
        for sequence in running.prefills.values():
            num_left = min(num_left, _num_lacking(sequence.request) - 1)  # a step that runs may bring the first
        if self._at_door:
            num_left = min(num_left, self._fewest_at_door)
        if len(waiting) > _MOST_LOOKED_AT:
            return min(num_left, 1)
        for request in waiting:
            num_left = min(num_left, _num_lacking(request))
        return num_left


def _num_lacking(request: Request) -> int:
    """Of a request that does not decode."""
    num_known = max([sequence.stored_known for sequence in request.live])
    return request.num_prompt_tokens + request.num_output_tokens - num_known
