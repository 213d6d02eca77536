"""Which requests go to which replica, where that can be told beforehand: then each replica is a run of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.interfaces import PolicyEnv
from core.routing import StaticRouting
from kvtwin.binding import class_of
from kvtwin.experiment import Experiment
from traces.replay import Arrivals, Names, TraceSource, awaited_rows, session_ids

_ROWS_AT_ONCE = 100_000


@dataclass(frozen=True)
class Placement:
    """`replica`: that of each row, [num_requests]; `sessions` names each row's conversation."""

    replica: NDArray[np.int32]
    sessions: NDArray[np.int64]
    num_replicas: int

    def part(self, experiment: Experiment, number: int) -> tuple[Experiment, Names]:
        """The experiment of one replica: its requests alone, which keep their names."""
        rows = np.flatnonzero(self.replica == number)
        part = replace(experiment, trace=experiment.trace.take(rows))
        return part, Names(rows.tolist(), self.sessions[rows].tolist())


def looks_at_replicas(experiment: Experiment) -> bool:
    """Does the routing go by more than the request?"""
    assert experiment.fleet.routing is not None
    return not issubclass(class_of(experiment.fleet.routing), StaticRouting)


def why_together(experiment: Experiment, placement: Placement | None) -> str:
    """Why the replicas must share one clock; empty if each can be simulated by itself. `placement`: if there is one."""
    if placement is None:
        return "this routing looks at the replicas"
    arrivals = experiment.replay.arrivals
    if arrivals in (Arrivals.SEQUENTIAL, Arrivals.CLOSED_LOOP):
        return f"under trace.arrivals={arrivals.value} a request at one replica waits for an answer of another"
    awaited = np.array(awaited_rows(experiment.trace, arrivals), dtype=np.int64)
    waits = awaited >= 0
    if (placement.replica[waits] != placement.replica[awaited[waits]]).any():
        return "this routing sends turns of one session to several replicas, and each waits for the one before"
    return ""


def placement_of(experiment: Experiment) -> Placement | None:
    """The static routing's answer for each row, asked in pieces; None for a routing that looks at the replicas."""
    if looks_at_replicas(experiment):
        return None
    fleet, trace, pool = experiment.fleet, experiment.trace, experiment.pool
    assert fleet.routing is not None
    policy = fleet.routing(PolicyEnv(lambda: 0, pool.num_blocks, pool.block_size_tokens, experiment.seed))
    sessions = np.array(session_ids(trace), dtype=np.int64)
    replica = np.empty(trace.num_requests, dtype=np.int32)
    for first in range(0, trace.num_requests, _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, trace.num_requests))
        source = TraceSource(trace.take(rows), experiment.replay, None, Names(rows.tolist(), sessions[rows].tolist()))
        replica[rows] = [policy.place(source.request(row, 0), fleet.num_replicas) for row in range(len(rows))]
    return Placement(replica, sessions, fleet.num_replicas)
