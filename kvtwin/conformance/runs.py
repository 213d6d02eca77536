"""Policies that decide beside the pool, in whole runs: each answer is looked at, and the run is repeated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from core.decision_log import first_difference
from core.interfaces import Policy, PolicyEnv
from kvtwin.conformance.answers import WATCHES
from kvtwin.conformance.fault import PolicyFault
from kvtwin.conformance.line_meter import MOST_LINES_A_CALL, Endless, LineMeter
from kvtwin.conformance.spans import spans_change_nothing, try_workloads
from kvtwin.conformance.subject import Check, Subject
from kvtwin.conformance.workloads import ENDS, Workload, run_workload

SAME = "same inputs, same decisions"


def answers_are_sound(subject: Subject) -> None:
    """Raises PolicyFault with the smallest workload on which an answer breaks a rule, or two runs differ."""
    try_workloads(subject, lambda workload: _run_twice(subject, workload))


def _run_twice(subject: Subject, workload: Workload) -> None:
    first, second = (run_workload(workload, subject, _watched(subject), single_steps=True).rows for _ in range(2))
    difference = first_difference(first, second, context=0)
    if difference is not None:
        left, right = (" ".join(map(str, side)) or "nothing" for side in (difference.left, difference.right))
        raise PolicyFault(SAME, f"one run: {left}; the same again: {right}", workload.story())


def _watched(subject: Subject) -> Callable[[PolicyEnv], Policy]:
    """Policies whose one method answers through a watch."""
    method, watch = WATCHES[subject.kind.name]

    def make(env: PolicyEnv) -> Policy:
        policy: Policy = subject.factory(env)
        setattr(policy, method, partial(watch().check, policy, _ending(getattr(policy, method))))
        return policy

    return make


def _ending(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, where one call of it may not go on for ever."""
    meter = LineMeter(MOST_LINES_A_CALL)

    def ask(*question: Any) -> Any:
        try:
            return meter.call(method, *question)
        except Endless:
            raise PolicyFault(ENDS, f"{method.__name__} does not end") from None

    return ask


def checks_for(promise: str) -> tuple[Check, ...]:
    return (
        Check(promise, answers_are_sound),
        Check("spans decide as single steps do", spans_change_nothing),
    )


CHECKS: dict[str, tuple[Check, ...]] = {
    "leaf": checks_for("ranks compare; same inputs, same decisions; everybody gets done"),
    "preemption": checks_for("names running requests; same inputs, same decisions; everybody gets done"),
    "queue": checks_for("keys are in one order; same inputs, same decisions; everybody gets done"),
    "admission": checks_for("more free blocks never turn admit into wait; same decisions; everybody gets done"),
    "batching": checks_for("the budget is positive; same inputs, same decisions; nobody starves"),
    "allocation": checks_for("enough blocks, never fewer for more tokens; same decisions; everybody gets done"),
}
