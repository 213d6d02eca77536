"""Small, crowded workloads on three replicas, and what a fleet decides of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from core.build import build_scheduler
from core.columns import requests_of
from core.decision_log import DecisionLog
from core.interfaces import PolicyEnv
from core.recorder import Recorder
from core.request import Outcome
from core.routing import RoutingPolicy
from kvtwin.conformance.workloads import USUAL, CountedSteps, Workload, how_ended, play, workload_trace
from sim.fleet import run_fleet
from traces.replay import Arrivals, ReplayConfig, TraceSource


@dataclass(frozen=True)
class Routed:
    """What a fleet decided: the replica of each request, and what became of it; the decisions of each replica."""

    NUM_REPLICAS: ClassVar[int] = 3

    places: dict[int, int]
    ended: dict[int, tuple[Outcome, int]]
    rows: list[np.ndarray]


def run_routed_workload(
    workload: Workload, make_policy: Callable[[PolicyEnv], RoutingPolicy], single_steps: bool
) -> Routed:
    """Simulates it on three replicas behind the policy. Raises as `run_workload` does."""
    pool, config = workload.pool, replace(workload.scheduler, single_steps=single_steps)
    schedulers = [
        build_scheduler(config, pool, USUAL, DecisionLog(), Recorder(), workload.prefix_caching)
        for _ in range(Routed.NUM_REPLICAS)
    ]
    source = TraceSource(workload_trace(workload), ReplayConfig(pool.block_size_tokens, Arrivals.RECORDED, 1))

    def policy(now: Callable[[], int]) -> RoutingPolicy:
        return make_policy(PolicyEnv(now, pool.num_blocks, pool.block_size_tokens, workload.seed))

    play(
        workload,
        lambda: run_fleet(source, schedulers, CountedSteps(), policy),
        lambda: max(scheduler.step for scheduler in schedulers),
    )
    places = {
        request_id: number
        for number, scheduler in enumerate(schedulers)
        for request_id in requests_of(scheduler).column("request_id").tolist()
    }
    return Routed(places, how_ended(workload, schedulers), [scheduler.log.rows() for scheduler in schedulers])
