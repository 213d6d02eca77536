"""The checks of each kind, run for the command (one finding each) and for tests (the first fault raises)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.errors import InputError
from kvtwin.binding import PolicyFactory, checked_policy
from kvtwin.conformance import eviction, routing, runs
from kvtwin.conformance.fault import NotChecked, PolicyFault
from kvtwin.conformance.subject import FAST, FULL, Check, Effort, Subject
from kvtwin.policy_kinds import kind_of

__all__ = [
    "FAST",
    "FULL",
    "Check",
    "Effort",
    "Finding",
    "Subject",
    "check_policy",
    "checks_of",
    "findings",
    "subject_of",
]

_CHECKS: Mapping[str, tuple[Check, ...]] = {"eviction": eviction.CHECKS, "routing": routing.CHECKS, **runs.CHECKS}


@dataclass(frozen=True)
class Finding:
    """What became of one check: a fault, or why it was not made, or neither: it passed."""

    name: str
    fault: PolicyFault | None = None
    not_checked: str = ""


def check_policy(policy: PolicyFactory, *, effort: Effort = FULL, seed: int = 0, **parameters: Any) -> None:
    """Raises PolicyFault (an AssertionError) at the first promise of its kind that the policy breaks.

    `policy` is a class, or functools.partial of one with parameters bound; further ones are given by name. The message
    tells the rule, the operation and the block or request, and the shortest story that was found to show it. FULL takes
    seconds, FAST tenths of a second. Raises InputError for what is no policy, or cannot be made.
    """
    for finding in findings(subject_of(policy, effort, seed, **parameters)):
        if finding.fault is not None:
            raise finding.fault


def subject_of(policy: PolicyFactory, effort: Effort = FULL, seed: int = 0, **parameters: Any) -> Subject:
    """The policy as the checks take it. Raises InputError for what is no policy."""
    bound = partial(policy, **parameters)
    kind = kind_of(bound.func)
    return Subject(kind, checked_policy(bound, kind.group, kind.base), effort, seed)


def checks_of(subject: Subject) -> tuple[Check, ...]:
    return _CHECKS[subject.kind.name]


def findings(subject: Subject) -> Iterator[Finding]:
    """One of every check, in order, up to the first that fails: what comes later would fail for the same reason.

    Raises InputError where the policy cannot be made at all, of these parameters.
    """
    _require_made(subject)
    for check in checks_of(subject):
        try:
            check.run(subject)
        except PolicyFault as fault:
            yield Finding(check.name, fault)
            return
        except NotChecked as reason:
            yield Finding(check.name, not_checked=str(reason))
        else:
            yield Finding(check.name)


def _require_made(subject: Subject) -> None:
    try:
        subject.make(lambda: 0, num_blocks=64)
    except InputError:  # some want blocks of one token
        subject.make(lambda: 0, num_blocks=64, block_size_tokens=1)
