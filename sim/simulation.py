"""One simulated run: a source of requests, a replica, a virtual clock."""

from __future__ import annotations

import simpy

from core.scheduler import Scheduler
from core.source import RequestSource
from sim.async_replica import AsyncReplica
from sim.beam_model import NO_DROPS, BeamModel
from sim.cluster import Replica, Source
from sim.cost_model import CostModel
from sim.executor import CostExecutor


def run_simulation(source: RequestSource, scheduler: Scheduler, cost: CostModel, beams: BeamModel = NO_DROPS) -> int:
    """Replays the source to its end and returns the virtual time then, in picoseconds.

    Everything that happened is in the scheduler's log and recorder. Requests that could not go on (the queue's head is
    refused for ever) are left in the scheduler with the outcome UNFINISHED.
    """
    env = simpy.Environment(initial_time=0)
    kind = AsyncReplica if scheduler.config.async_scheduling else Replica
    replica = kind(env, scheduler, CostExecutor(cost), beams)
    inputs = Source(env, source, replica)
    replica.draw_from(source, inputs.arm)
    env.run()
    return int(env.now)
