"""Spans are an optimisation, never an approximation: with them or without, a policy decides the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from core.decision_log import first_difference
from core.errors import InputError
from kvtwin.conformance.fault import NotChecked, PolicyFault
from kvtwin.conformance.shrinking import shortened
from kvtwin.conformance.subject import Subject
from kvtwin.conformance.workloads import Asked, Workload, random_workload, run_workload

PROMISES = "What it promises by `next_change`, `fixed_rules`, `is_prefix_closed` or `ignores_repetition` does not hold"
SPANS = "spans decide as single steps do"


def spans_change_nothing(subject: Subject) -> None:
    """Raises PolicyFault with the smallest workload on which the two ways part."""
    try_workloads(subject, lambda workload: _compare(subject, workload))


def try_workloads(subject: Subject, run: Callable[[Workload], object]) -> None:
    """Raises the PolicyFault of the smallest workload that shows it, or NotChecked where the policy refuses them all.

    What it refuses by InputError is no fault: the workload is tried in plainer worlds, and else left out.
    """
    num_run, reason = 0, ""
    for number in range(subject.effort.num_workloads):
        workload = random_workload(random.Random(f"{subject.seed} {number}"), subject.seed)
        for world in (workload, *workload.plainer()):
            try:
                _find_fault(world, run)
            except InputError as refusal:
                reason = str(refusal)
            else:
                num_run += 1
                break
    if num_run == 0:
        raise NotChecked(f"it refuses all random workloads: {reason}")


def _find_fault(workload: Workload, run: Callable[[Workload], object]) -> None:
    """Raises the PolicyFault of the smallest workload that shows the same rule broken, where this one breaks one."""
    found = _fault(workload, run)
    if found is None:
        return

    def shows(asked: Sequence[Asked]) -> bool:
        fault = _fault(workload.with_requests(asked), run) if asked else None
        return fault is not None and fault.rule == found.rule

    kept = shortened(workload.asked, shows)
    raise _fault(workload.with_requests(kept), run) or found


def _fault(workload: Workload, run: Callable[[Workload], object]) -> PolicyFault | None:
    try:
        run(workload)
    except PolicyFault as fault:
        return fault
    return None


def _compare(subject: Subject, workload: Workload) -> None:
    spans = run_workload(workload, subject, subject.factory, single_steps=False)
    steps = run_workload(workload, subject, subject.factory, single_steps=True)
    difference = first_difference(steps.rows, spans.rows, context=0)
    if difference is not None:
        single, span = (" ".join(map(str, side)) or "nothing" for side in (difference.left, difference.right))
        what = f"single steps: {single}; in spans: {span}. {PROMISES}"
        raise PolicyFault(SPANS, what, workload.story())
    if spans.ended != steps.ended:
        who = next(number for number, end in steps.ended.items() if spans.ended[number] != end)
        raise PolicyFault(SPANS, f"request {who} gets done at another time", workload.story())
