"""What runs at the same time, in SimPy: a source of requests and a replica. One event per span, never per token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import simpy
from simpy.events import URGENT

from core.plan import StepPlan, StepResult
from core.request import Request
from core.scheduler import Scheduler
from core.source import Input, InputKind, RequestSource
from core.units import NEVER_PS
from sim.beam_model import NO_DROPS, BeamModel
from sim.executor import CostExecutor
from sim.express import Express, Stop, suits

OnDone = Callable[[list[Request], int], None]
"""Hears which requests are done, and when: it may lie ahead of the clock, if nothing can happen before."""


class UrgentTimeout(simpy.Event):
    """A timeout that precedes the ordinary events of its instant: the end of a step sees an arrival it ties with."""

    def __init__(self, env: simpy.Environment, delay_ps: int) -> None:
        super().__init__(env)
        self._ok = True
        self._value = None
        env.schedule(self, URGENT, delay_ps)


class Replica:
    """One scheduler and its executor. Idle, it plans when woken; busy, it is woken when its span ends.

    State changes only when a span ends or an input arrives; an input in the midst of a span first catches up with the
    steps that have begun, so that decisions are those of single steps.
    """

    def __init__(
        self, env: simpy.Environment, scheduler: Scheduler, executor: CostExecutor, beams: BeamModel = NO_DROPS
    ) -> None:
        self._env = env
        self._scheduler = scheduler
        self._executor = executor
        self._beams = beams
        self._plan: StepPlan | None = None  # in flight
        self._alarm: simpy.Event | None = None  # the event that will wake it; others are stale
        self._flies = False  # a span of plain steps is in flight, instead of a plan
        self._must_land = False  # somebody could join it
        self._express = (
            Express(
                scheduler, executor.cost, self._next_event_ps, lambda requests, now_ps: self.on_done(requests, now_ps)
            )
            if suits(scheduler, executor.cost)
            else None
        )
        self.on_done: OnDone = lambda requests, now_ps: None
        self._on_return: Callable[[], None] = lambda: None

    def _tell_done(self, requests: list[Request], now_ps: int) -> None:
        self.on_done(requests, now_ps)

    def _next_event_ps(self) -> int:
        return int(min(self._env.peek(), NEVER_PS))

    def draw_from(self, source: RequestSource, on_return: Callable[[], None]) -> None:
        """There is nothing else in this environment: plain steps may take arrivals from the source ahead of the clock.
        `on_return` hears when they have come to a halt, and inputs come through `take` again.
        """
        if self._express is not None:
            self._express.draw_from(source)
            self._on_return = on_return

    def take(self, given: Input) -> None:
        """An arrival or a cancellation, now."""
        now_ps = int(self._env.now)
        if self._flies:
            if given.kind is InputKind.ARRIVE:
                self._must_land = self._hand_over(given) or self._must_land
                return  # seen when the step that runs has ended
            self._make_a_plan()
        if self._plan is not None:
            self._scheduler.extend(self._plan, self._executor.begun(now_ps))
        must_cut = self._hand_over(given)
        if self._plan is None:
            self._wake_after(0)
        elif must_cut:
            self._wake_after(self._executor.cut(now_ps) - now_ps)

    def _make_a_plan(self) -> None:
        """What flies is to be committed by the scheduler."""
        assert self._express is not None
        self._flies = self._must_land = False
        self._plan, durations_ps = self._express.flight.as_plan()
        self._executor.resume(self._plan, durations_ps)

    def _hand_over(self, given: Input) -> bool:
        """Tells the scheduler. Returns whether the next step may be another because of it."""
        scheduler, now_ps = self._scheduler, int(self._env.now)
        if given.kind is InputKind.ARRIVE:
            is_queued = scheduler.add(given.request, now_ps)
            if not is_queued:
                self.on_done([given.request], now_ps)
            return is_queued and scheduler.wants_step_now(given.request)
        scheduler.cancel(given.request, now_ps)
        self.on_done([given.request], now_ps)
        return True

    def _wake_after(self, delay_ps: int) -> None:
        if self._alarm is not None and self._plan is None:
            return  # idle and already woken for this instant
        self._alarm = self._env.timeout(delay_ps)
        self._alarm.callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm is not self._alarm:
            return  # stale: the span was cut
        self._alarm = None
        if self._flies:
            self._fly_on()
            return
        if self._plan is not None:
            self._end_plan()
        self._begin_step()

    def _end_plan(self) -> None:
        """The last step of the running plan ends now."""
        assert self._plan is not None
        plan, self._plan = self._plan, None
        parents = self._beams.parents(plan) if plan.searches else {}
        done = self._scheduler.commit(plan, StepResult(self._executor.collect(), parents=parents))
        if done:
            self.on_done(done, int(self._env.now))

    def _fly_on(self) -> None:
        """The steps that were taken in advance have ended. If nothing came that matters the span goes on, else it
        lands.
        """
        assert self._express is not None
        if not self._must_land and self._express.goes_on():
            self._wake_after(self._express.flight.end_ps - int(self._env.now))
            return
        self._flies = self._must_land = False
        self._halt(*self._express.land_and_run(self._express.flight.end_ps))

    def _begin_step(self) -> None:
        if self._express is None:
            self._plan_by_rule(int(self._env.now))
        else:
            self._halt(*self._express.run(int(self._env.now)))

    def _halt(self, stop: Stop, at_ps: int) -> None:
        """The express has come to its end at a boundary that may lie ahead; nothing else happens before."""
        assert self._express is not None
        self._alarm = None  # all that came in at this instant has been seen
        if stop is Stop.BY_RULE:
            self._plan_by_rule(at_ps)
        elif stop is Stop.DECIDED:
            assert self._express.plan is not None
            self._carry_out(self._express.plan, self._express.plan.rejected)
        elif stop is Stop.IDLE:
            self._env.timeout(at_ps - int(self._env.now))  # the clock goes on to there
        else:
            self._flies = stop is Stop.FLYING
            self._must_land = self._flies and self._express.must_land
            self._wake_after(at_ps - int(self._env.now))
        self._on_return()

    def _plan_by_rule(self, now_ps: int) -> None:
        """Has the scheduler plan the step that starts now."""
        rejected: list[Request] = []
        plan = self._next_plan(now_ps, rejected)
        while plan is not None and plan.is_empty and plan.preempted:
            plan = self._next_plan(now_ps, rejected)
        self._alarm = None
        self._carry_out(plan, rejected)

    def _carry_out(self, plan: StepPlan | None, rejected: list[Request]) -> None:
        if plan is not None and not plan.is_empty:
            self._start(plan)  # else there is nothing to do until the next input
        if rejected:
            self.on_done(rejected, self._scheduler.now_ps)

    def _next_plan(self, now_ps: int, rejected: list[Request]) -> StepPlan | None:
        """Adds to `rejected` whom the admission policy turns away."""
        plan = self._scheduler.schedule(now_ps)
        if plan is not None:
            rejected += plan.rejected
        return plan

    def _start(self, plan: StepPlan) -> None:
        """The plan runs from now on."""
        self._plan = plan
        self._wake_after(self._executor.submit(plan) - int(self._env.now))


class Taker(Protocol):
    """Where inputs go: a replica, or a router with many behind it."""

    on_done: OnDone

    def take(self, given: Input) -> None: ...


class Source:
    """Delivers the inputs of a run to the replica at their times, and the follow-ups of requests that are done."""

    def __init__(self, env: simpy.Environment, source: RequestSource, replica: Taker) -> None:
        self._env = env
        self._source = source
        self._replica = replica
        self._armed_ps: int | None = None
        self._alarm: simpy.Event | None = None  # others are stale
        self._is_delivering = False
        replica.on_done = self._on_done
        self._deliver()

    def _on_done(self, requests: list[Request], now_ps: int) -> None:
        for request in requests:
            self._source.on_done(request, now_ps)
        next_ps = self._source.next_ps()
        if next_ps is None or next_ps == self._armed_ps or self._is_delivering:
            return  # nothing new; or the delivery under way goes on with what just became due
        self._deliver()

    def _deliver(self) -> None:
        """Hands over what is due now, and sets the alarm for the next."""
        self._is_delivering = True
        for given in self._source.pop_due(int(self._env.now)):
            self._replica.take(given)
        self._is_delivering = False
        self.arm()

    def arm(self) -> None:
        """Sets the alarm for the next input."""
        next_ps = self._source.next_ps()
        if next_ps is not None and next_ps != self._armed_ps:
            self._armed_ps = next_ps
            self._alarm = UrgentTimeout(self._env, next_ps - int(self._env.now))
            self._alarm.callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm is self._alarm:
            self._armed_ps = None
            self._deliver()
