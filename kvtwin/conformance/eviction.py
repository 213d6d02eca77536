"""What every eviction policy owes its pool."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from core.block_pool import FreeOrder
from kvtwin.conformance.costs import costs_stay_bounded
from kvtwin.conformance.fault import PolicyFault
from kvtwin.conformance.pool_life import Operation, PoolCase, fault_of, random_operations
from kvtwin.conformance.shrinking import shortened, simplified
from kvtwin.conformance.spans import spans_change_nothing
from kvtwin.conformance.subject import Check, Subject

_MOST_BLOCKS = 14


def _lives_in_any_pool(subject: Subject) -> None:
    _live(subject, leaf_first=False)


def _lives_under_leaf_first(subject: Subject) -> None:
    _live(subject, leaf_first=True)


def _live(subject: Subject, leaf_first: bool) -> None:
    """Random lives, in pools of 1 to 14 blocks and, every tenth, in an unbounded one; the first fault is shortened."""
    for number in range(subject.effort.num_lives):
        source = random.Random(f"{subject.seed} {leaf_first} {number}")
        num_blocks = None if number % 10 == 9 else source.randint(1, _MOST_BLOCKS)
        case = PoolCase(num_blocks, list(FreeOrder)[number % 2], leaf_first, subject.seed)
        operations = random_operations(subject.effort.num_operations, source)
        fault = fault_of(subject, case, operations)
        if fault is not None:
            raise _shortest(subject, case, operations, fault)


def _shortest(subject: Subject, case: PoolCase, operations: Sequence[Operation], found: PolicyFault) -> PolicyFault:
    """The same rule broken in the fewest and simplest operations, in the smallest pool, that were tried."""

    def shows(candidate: Sequence[Operation], pool: PoolCase = case) -> bool:
        fault = fault_of(subject, pool, candidate)
        return fault is not None and fault.rule == found.rule

    kept = shortened(operations, shows)
    alike = [operation._replace(which=0) for operation in kept]  # one text, one table: they must change together
    kept = alike if shows(alike) else kept
    kept = simplified(kept, Operation.simpler, shows)
    smaller = [replace(case, num_blocks=number) for number in range(1, case.num_blocks or 1)]
    case = next((pool for pool in smaller if shows(kept, pool)), case)
    shortest = fault_of(subject, case, kept)
    return shortest or found  # None where the fault comes and goes: a policy that is no function of its history


CHECKS = (
    Check("gives up evictable blocks only, each once, all in the end; same seed, same victims", _lives_in_any_pool),
    Check("the same under pool.leaf_first", _lives_under_leaf_first),
    Check("its cost per block does not grow with the pool", costs_stay_bounded),
    Check("spans decide as single steps do", spans_change_nothing),
)
