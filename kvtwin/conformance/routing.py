"""Routing policies, in fleets on small workloads: each answer is looked at, and the run is repeated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from core.decision_log import first_difference
from core.interfaces import PolicyEnv
from core.request import Request
from core.routing import Replicas, ReplicaView, RoutingPolicy, StaticRouting
from kvtwin.conformance.fault import NotChecked, PolicyFault
from kvtwin.conformance.line_meter import MOST_LINES_A_CALL, Endless, LineMeter
from kvtwin.conformance.routed_workloads import Routed, run_routed_workload
from kvtwin.conformance.spans import PROMISES, SPANS, try_workloads
from kvtwin.conformance.subject import Check, Subject
from kvtwin.conformance.workloads import ENDS, Workload
from kvtwin.placement import bare_request

NAMES = "names a replica"
ONLY_LOOKS = "only looks at the replicas"
SAME = "same inputs, same decisions"
STATIC = "a static routing answers by the request alone"


def answers_are_sound(subject: Subject) -> None:
    """Raises PolicyFault with the smallest workload on which an answer breaks a rule, or two runs differ."""
    try_workloads(subject, lambda workload: _run_twice(subject, workload))


def spans_change_nothing(subject: Subject) -> None:
    """Raises PolicyFault with the smallest workload on which spans and single steps part."""
    try_workloads(subject, lambda workload: _compare(subject, workload))


def static_is_static(subject: Subject) -> None:
    """Raises PolicyFault where another one of the same seed, asked in another order, answers otherwise; or asked with
    requests that have nothing but what it says it goes by.
    """
    if not issubclass(subject.policy, StaticRouting):
        raise NotChecked("it looks at the replicas")
    try_workloads(subject, lambda workload: _ask_backwards(subject, workload))


def _run_twice(subject: Subject, workload: Workload) -> None:
    first, second = (run_routed_workload(workload, partial(_watched, subject), True) for _ in range(2))
    if first.places != second.places:
        who = next(number for number, place in first.places.items() if second.places[number] != place)
        told = f"request {who} to replica {first.places[who]}; the same again: to {second.places[who]}"
        raise PolicyFault(SAME, told, workload.story())


def _compare(subject: Subject, workload: Workload) -> None:
    spans, steps = (run_routed_workload(workload, subject.factory, single) for single in (False, True))
    if spans.places != steps.places or spans.ended != steps.ended or _differ(spans, steps):
        raise PolicyFault(SPANS, f"replicas differ. {PROMISES}", workload.story())


def _differ(spans: Routed, steps: Routed) -> bool:
    return any(first_difference(*rows) is not None for rows in zip(spans.rows, steps.rows, strict=True))


def _ask_backwards(subject: Subject, workload: Workload) -> None:
    asked: dict[int, Request] = {}

    def noting(env: PolicyEnv) -> RoutingPolicy:
        policy: RoutingPolicy = subject.factory(env)
        answer = policy.route

        def route(request: Request, replicas: Replicas) -> int:
            asked[request.request_id] = request
            return answer(request, replicas)

        policy.route = route  # type: ignore[method-assign]
        return policy

    places = run_routed_workload(workload, noting, True).places
    pool = workload.pool
    again = subject.factory(PolicyEnv(lambda: 0, pool.num_blocks, pool.block_size_tokens, workload.seed))
    for number, request in reversed(asked.items()):
        by = again.placed_by
        place = again.place(bare_request(by, getattr(request, by)) if by else request, Routed.NUM_REPLICAS)
        if place != places[number]:
            told = f"request {number} goes to replica {places[number]} in its turn, to {place} when asked in another"
            raise PolicyFault(STATIC, told, workload.story())


class _Untouchable:
    """A view that may only be read."""

    def __init__(self, view: ReplicaView) -> None:
        object.__setattr__(self, "_view", view)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise PolicyFault(ONLY_LOOKS, f"route sets {name} of a replica")


def _watched(subject: Subject, env: PolicyEnv) -> RoutingPolicy:
    """A policy whose answers are looked at."""
    policy: RoutingPolicy = subject.factory(env)
    policy.route = partial(_asked, policy.route)  # type: ignore[method-assign]
    return policy


def _asked(answer: Callable[..., int], request: Request, replicas: Replicas) -> int:
    try:
        number = LineMeter(MOST_LINES_A_CALL).call(answer, request, Replicas(map(_Untouchable, replicas)))
    except Endless:
        raise PolicyFault(ENDS, "route does not end") from None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(replicas):
        told = f"request {request.request_id}: {number!r}; expected a whole number, 0 to {len(replicas) - 1}"
        raise PolicyFault(NAMES, told)
    return number


CHECKS: tuple[Check, ...] = (
    Check("names a replica and only looks at them; same inputs, same decisions", answers_are_sound),
    Check(STATIC, static_is_static),
    Check("spans decide as single steps do", spans_change_nothing),
)
