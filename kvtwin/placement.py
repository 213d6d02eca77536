"""Which requests go to which replica, where that can be told beforehand: then each replica is a run of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from core.content import PrivateKeys
from core.interfaces import PolicyEnv
from core.request import Request
from core.routing import StaticRouting, no_replica
from kvtwin.binding import class_of
from kvtwin.experiment import Experiment
from traces.replay import Arrivals, Names, TraceSource, awaited_rows
from traces.schema import Trace
from traces.statistics import conversations

_ROWS_AT_ONCE = 100_000

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Placement:
    """`replica`: that of each row, [num_requests]; `sessions` names each row's conversation."""

    replica: NDArray[np.int32]
    sessions: Ints
    by_replica: Ints  # all rows, those of replica 0 first, in order
    ends: Ints  # places in `by_replica`, [num_replicas]

    @classmethod
    def of(cls, replica: NDArray[np.int32], sessions: Ints, num_replicas: int) -> Placement:
        by_replica = np.argsort(replica, kind="stable")
        return cls(replica, sessions, by_replica, np.cumsum(np.bincount(replica, minlength=num_replicas)))

    @property
    def num_replicas(self) -> int:
        return len(self.ends)

    def rows(self, number: int) -> Ints:
        """Of one replica, in order. O(1)."""
        return self.by_replica[self.num_before(number) : self.ends[number]]

    def num_before(self, number: int) -> int:
        """Requests of the replicas before this one."""
        return int(self.ends[number - 1]) if number else 0

    def part(self, experiment: Experiment, number: int) -> tuple[Experiment, Names]:
        """The experiment of one replica: its requests alone, which keep their names."""
        rows = self.rows(number)
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
    if experiment.trace.parent is None:
        return ""
    awaited = awaited_rows(experiment.trace, arrivals)
    waits = awaited >= 0
    if (placement.replica[waits] != placement.replica[awaited[waits]]).any():
        return "this routing sends turns of one session to several replicas, and each waits for the one before"
    return ""


def placement_of(experiment: Experiment) -> Placement | None:
    """The static routing's answer for each row; None for a routing that looks at the replicas."""
    if looks_at_replicas(experiment):
        return None
    fleet, trace, pool = experiment.fleet, experiment.trace, experiment.pool
    assert fleet.routing is not None
    policy: StaticRouting = fleet.routing(
        PolicyEnv(lambda: 0, pool.num_blocks, pool.block_size_tokens, experiment.seed)
    )
    sessions = _sessions(trace)
    if policy.placed_by is None:
        replica = _placed_one_by_one(experiment, policy, sessions)
    else:
        replica = _placed_by_value(policy, _column(trace, sessions, policy.placed_by), fleet.num_replicas)
    return Placement.of(replica, sessions, fleet.num_replicas)


def _sessions(trace: Trace) -> Ints:
    """As `traces.replay.session_ids`."""
    has_sessions = trace.session_id is not None or trace.parent is not None
    return conversations(trace) if has_sessions else np.arange(trace.num_requests)


def _column(trace: Trace, sessions: Ints, attribute: str) -> Ints:
    """That attribute of every request, [num_requests]."""
    if attribute == "session_id":
        return sessions
    if attribute == "request_id":
        return np.arange(trace.num_requests)
    return np.zeros(trace.num_requests, dtype=np.int64) if trace.tenant is None else trace.tenant


def _placed_by_value(policy: StaticRouting, column: Ints, num_replicas: int) -> NDArray[np.int32]:
    values, inverse = np.unique(column, return_inverse=True)
    attribute = str(policy.placed_by)
    places = [policy.place(bare_request(attribute, value), num_replicas) for value in values.tolist()]
    return _checked(policy, places, num_replicas)[inverse]


def _checked(policy: StaticRouting, places: list[int], num_replicas: int) -> NDArray[np.int32]:
    for place in places:
        if not isinstance(place, int) or not 0 <= place < num_replicas:
            raise no_replica(f"{type(policy).__name__}.place", place, num_replicas)
    return np.array(places, dtype=np.int32)


def bare_request(attribute: str, value: int) -> Request:
    """A request of which a policy may look at this attribute alone."""
    request = Request(0, 0, 1, 1, PrivateKeys(0))
    setattr(request, attribute, value)
    return request


def _placed_one_by_one(experiment: Experiment, policy: StaticRouting, sessions: Ints) -> NDArray[np.int32]:
    """Asked in pieces: the requests of a piece are all that is in memory."""
    trace, num_replicas = experiment.trace, experiment.fleet.num_replicas
    replica = np.empty(trace.num_requests, dtype=np.int32)
    for first in range(0, trace.num_requests, _ROWS_AT_ONCE):
        rows = np.arange(first, min(first + _ROWS_AT_ONCE, trace.num_requests))
        source = TraceSource(trace.take(rows), experiment.replay, None, Names(rows.tolist(), sessions[rows].tolist()))
        places = [policy.place(source.request(row, 0), num_replicas) for row in range(len(rows))]
        replica[rows] = _checked(policy, places, num_replicas)
    return replica
