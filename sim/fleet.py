"""Many replicas behind a router, on one virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from core.request import Request
from core.routing import RoutingPolicy, no_replica
from core.scheduler import Scheduler
from core.source import Input, InputKind, RequestSource
from sim.beam_model import NO_DROPS, BeamModel
from sim.cluster import OnDone, Source
from sim.cost_model import CostModel
from sim.executor import CostExecutor
from sim.fleet_by_replica import FleetByReplica, suits
from sim.fleet_replica import FleetReplica, Instant, Moment, Phase
from sim.fleet_views import Outstanding
from sim.live_replicas import LiveReplicas
from sim.replica_by_itself import OwnClock


class Router:
    """Hands each input to the replica that the policy names, or that has the request already.

    What requests that are done set free is delivered in a phase of its own, in order of the replicas.
    """

    def __init__(
        self, instant: Instant, policy: RoutingPolicy, replicas: Sequence[FleetReplica], schedulers: Sequence[Scheduler]
    ) -> None:
        self._instant = instant
        self._policy = policy
        self._replicas = replicas
        self._outstanding = Outstanding(len(replicas), schedulers[0].tables.block_size)
        self._views = LiveReplicas(replicas, schedulers, self._outstanding)
        self._place: dict[int, int] = {}  # request that is not done -> its replica
        self._is_taking = False
        self._done: dict[Phase, list[tuple[int, list[Request]]]] = {Phase.FOLLOW_UPS: [], Phase.AFTER_PLANS: []}
        self.on_done: OnDone = lambda requests, now_ps: None
        for number, replica in enumerate(replicas):
            replica.on_done = partial(self._on_done, number)

    def take(self, given: Input) -> None:
        """An arrival or a cancellation, now. Raises InputError for a policy that names no replica."""
        request = given.request
        if given.kind is InputKind.ARRIVE:
            number = self._policy.route(request, self._views)
            if not isinstance(number, int) or not 0 <= number < len(self._replicas):
                raise no_replica(f"{type(self._policy).__name__}.route", number, len(self._replicas))
            self._place[request.request_id] = number
            self._outstanding.add(request, number)
        self._is_taking = True
        self._replicas[self._place[request.request_id]].take(given)
        self._is_taking = False

    def _on_done(self, number: int, requests: list[Request], now_ps: int) -> None:
        if self._is_taking:  # cancelled, or turned away on arrival: its source is waiting to hear
            self._tell([(number, requests)])
            return
        phase = Phase.AFTER_PLANS if self._replicas[number].is_planning else Phase.FOLLOW_UPS
        self._done[phase].append((number, requests))
        if self._instant.is_over() and phase is Phase.FOLLOW_UPS:
            self._follow_up(phase)
        elif len(self._done[phase]) == 1:
            Moment(self._instant.env, phase, partial(self._follow_up, phase))

    def _follow_up(self, phase: Phase) -> None:
        """Everybody who ended in this part of the instant is known."""
        done = sorted(self._done[phase], key=lambda each: each[0])
        self._done[phase].clear()
        self._instant.phase = phase
        self._tell(done)
        self._instant.phase = Phase.INPUTS

    def _tell(self, done: Sequence[tuple[int, list[Request]]]) -> None:
        for number, requests in done:
            for request in requests:
                self._outstanding.remove(request, number)
                del self._place[request.request_id]
                self._policy.on_done(request, number)
        self.on_done([request for _, requests in done for request in requests], int(self._instant.env.now))


def run_fleet(
    source: RequestSource,
    schedulers: Sequence[Scheduler],
    cost: CostModel,
    make_policy: Callable[[Callable[[], int]], RoutingPolicy],
    beams: BeamModel = NO_DROPS,
) -> int:
    """Replays the source to its end over replicas that are alike, and returns the virtual time then, in picoseconds.

    `make_policy` is given the clock. Everything that happened is in the schedulers' logs and recorders. Cost: that of
    the replicas alone, and one call of the policy a request.
    """
    own_clock = OwnClock()
    clock: simpy.Environment = own_clock
    policy = make_policy(lambda: int(clock.now))
    if suits(source):
        return FleetByReplica(own_clock, source, schedulers, cost, policy, beams).run()
    clock = simpy.Environment(initial_time=0)
    instant = Instant(clock)
    replicas = [
        FleetReplica(instant, number, scheduler, CostExecutor(cost), beams)
        for number, scheduler in enumerate(schedulers)
    ]
    Source(clock, source, Router(instant, policy, replicas, schedulers))
    clock.run()
    return int(clock.now)
