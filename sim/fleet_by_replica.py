"""Replicas that meet at the router only, each run from one thing that concerns it to the next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from core.request import Outcome, Request
from core.routing import RoutingPolicy, no_replica
from core.scheduler import Scheduler
from core.source import Input, InputKind, RequestSource
from core.units import NEVER_PS
from sim.beam_model import BeamModel
from sim.cost_model import CostModel
from sim.executor import CostExecutor
from sim.fleet_views import Outstanding
from sim.live_replicas import LiveReplicas
from sim.replica_by_itself import OwnClock, ReplicaByItself
from sim.turns import Turns


def suits(source: RequestSource) -> bool:
    """Whether nothing depends on what comes after what within an instant."""
    return not source.follows_at_once


class FleetByReplica:
    """One run. Before an input is handed out, every replica has gone on to whichever request ends before. So numbers
    of requests that are not done are exact, and so is what a view shows once its replica has caught up.

    A policy that looks at more than views has every replica go on to all that is due before. Otherwise they wait for
    what can be an end: no earlier than by so many steps, none of which is shorter than the cost model's least; and
    where nobody hears of ends, they wait until somebody asks.

    Cost beside that of the replicas: O(log replicas) for each time that something ends, is planned or comes in.
    """

    def __init__(
        self,
        clock: OwnClock,
        source: RequestSource,
        schedulers: Sequence[Scheduler],
        cost: CostModel,
        policy: RoutingPolicy,
        beams: BeamModel,
    ) -> None:
        self._clock = clock
        self._source = source
        self._policy = policy
        may_lag = not (vars(type(policy)).get("looks_back", True) or schedulers[0].policies.admission.rejects)
        least_step_ps = cost.least_step_ps if may_lag else 0
        self._replicas = [
            ReplicaByItself(number, scheduler, CostExecutor(cost), beams, clock, self._horizon, least_step_ps)
            for number, scheduler in enumerate(schedulers)
        ]
        block_size = schedulers[0].tables.block_size
        self._outstanding = Outstanding(len(schedulers), block_size, self._settle_one, self._settle)
        self._views = LiveReplicas(self._replicas, schedulers, self._outstanding)
        self._any_scheduler = schedulers[0]  # they are alike
        for number, replica in enumerate(self._replicas):
            replica.on_done = partial(self._on_done, number)
        self._policy_hears_of_ends = type(policy).on_done is not RoutingPolicy.on_done
        self._ends: list[tuple[int, bool, int, Request]] = []  # (when, turned away?, replica, who): policy is to hear
        self._is_taking = False
        self._turns = Turns(len(schedulers))
        self._next_ps: int = NEVER_PS  # when the next input comes
        self._place: dict[int, int] = {}  # request that is not done -> its replica

    def run(self) -> int:
        """To the end; returns the time then, in picoseconds. A run that is broken off knows of everybody who came."""
        try:
            return self._to_the_end()
        finally:
            for replica in self._replicas:
                replica.open_door()

    def _to_the_end(self) -> int:
        ends_matter = self._policy_hears_of_ends or self._source.hears_of_ends
        self._look_for_input()
        while True:
            if ends_matter or self._next_ps == NEVER_PS:
                self._settle()
            if self._ends:
                self._tell_ends()
            if self._next_ps == NEVER_PS:
                return max(clock.now for clock in (self._clock, *(replica.clock for replica in self._replicas)))
            self._hand_out(self._next_ps)

    def _settle(self) -> None:
        """Whoever is done before the next input (which is now, while it is handed out) is found to be."""
        turns = self._turns
        while turns.first_ps < self._next_ps:
            self._give_turn(turns.first)

    def _settle_one(self, number: int) -> None:
        """As `_settle`, at one replica."""
        if self._replicas[number].turn_ps < self._next_ps:
            self._give_turn(number)

    def _give_turn(self, number: int) -> None:
        replica = self._replicas[number]
        if self._source.hears_of_ends:
            self._turns.note(number, NEVER_PS)  # those of the others are what it goes up to
        replica.go_on()
        self._turns.note(number, replica.turn_ps)

    def _look_for_input(self) -> None:
        next_ps = self._source.next_ps()
        self._next_ps = NEVER_PS if next_ps is None else next_ps

    def _horizon(self) -> int:
        """Before this nothing comes in, be it set free by an end at another replica."""
        return min(self._next_ps, self._turns.first_ps) if self._source.hears_of_ends else self._next_ps

    def _hand_out(self, now_ps: int) -> None:
        """All inputs of this instant."""
        self._clock.now = now_ps
        while self._next_ps == now_ps:
            request = self._source.pop_arrival(now_ps)
            if request is None:
                for given in self._source.pop_due(now_ps):
                    self._take(given)
            else:
                self._route(request, now_ps)
            self._look_for_input()

    def _route(self, request: Request, now_ps: int) -> None:
        number = self._policy.route(request, self._views)
        if not isinstance(number, int) or not 0 <= number < len(self._replicas):
            raise no_replica(f"{type(self._policy).__name__}.route", number, len(self._replicas))
        self._place[request.request_id] = number
        self._outstanding.add(request, number)
        replica = self._replicas[number]
        turn_ps = replica.turn_ps
        if self._any_scheduler.surely_queues(request):
            replica.arrive(request, now_ps)
        else:
            self._hand_over(replica, Input(now_ps, InputKind.ARRIVE, request))
        if replica.turn_ps != turn_ps:
            self._turns.note(number, replica.turn_ps)

    def _hand_over(self, replica: ReplicaByItself, given: Input) -> None:
        self._is_taking = True
        replica.take(given)
        self._is_taking = False

    def _take(self, given: Input) -> None:
        """What comes besides arrivals told one by one."""
        if given.kind is InputKind.ARRIVE:
            self._route(given.request, self._clock.now)
            return
        number = self._place[given.request.request_id]
        replica = self._replicas[number]
        self._hand_over(replica, given)
        self._turns.note(number, replica.turn_ps)

    def _on_done(self, number: int, requests: list[Request], now_ps: int) -> None:
        for request in requests:
            self._outstanding.remove(request, number)
            del self._place[request.request_id]
            if self._policy_hears_of_ends:
                self._ends.append((now_ps, request.outcome is Outcome.REJECTED, number, request))
        if self._is_taking:
            self._tell_ends()
        if self._source.hears_of_ends:
            for request in requests:
                self._source.on_done(request, now_ps)
            self._look_for_input()

    def _tell_ends(self) -> None:
        """In order of time, and of replicas; whoever was turned away at planning comes last in an instant."""
        self._ends.sort(key=_when)
        for now_ps, _, number, request in self._ends:
            self._clock.now = now_ps
            self._policy.on_done(request, number)
        self._ends.clear()


def _when(end: tuple[int, bool, int, Request]) -> tuple[int, bool, int]:
    return end[:3]
