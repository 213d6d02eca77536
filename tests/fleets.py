"""Fleets for tests: replicas of a small world behind a routing policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from world import UNIT_STEPS, Run, Settings, scheduler_of

from core.interfaces import PolicyEnv
from core.routing import RoutingPolicy
from sim.cost_model import CostModel
from sim.fleet import run_fleet
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.schema import Trace


def simulate_fleet(
    trace: Trace,
    settings: Settings,
    num_replicas: int,
    routing: Callable[[PolicyEnv], RoutingPolicy],
    cost: CostModel = UNIT_STEPS,
    arrivals: Arrivals = Arrivals.RECORDED,
    concurrency: int = 1,
    one_clock: bool = False,
) -> list[Run]:
    """Replays the trace to its end; a run for each replica. `one_clock`: even where each could go on by itself."""
    schedulers = [scheduler_of(replace(settings, seed=number), by_ids=settings.spans) for number in range(num_replicas)]
    source = TraceSource(trace, ReplayConfig(settings.block_size, arrivals, concurrency))
    source.follows_at_once |= one_clock

    def make(now: Callable[[], int]) -> RoutingPolicy:
        return routing(PolicyEnv(now, settings.num_blocks, settings.block_size, settings.seed))

    run_fleet(source, schedulers, cost, make)
    return [Run(scheduler, trace.num_requests) for scheduler in schedulers]


def places(runs: Sequence[Run]) -> list[int]:
    """The replica of each request, in order of the trace."""
    found: dict[int, Any] = {}
    for number, run in enumerate(runs):
        found |= {request.request_id: number for request in run.requests()}
    return [found[row] for row in sorted(found)]
