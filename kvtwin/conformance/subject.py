"""What is checked, and how thoroughly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.interfaces import Policy
from kvtwin.binding import class_of
from kvtwin.policy_kinds import Kind


@dataclass(frozen=True)
class Effort:
    """How many random cases; how large the pools are on which costs are compared, in blocks; `measures_time`: too."""

    num_lives: int
    num_operations: int
    num_workloads: int
    few_blocks: int
    many_blocks: int
    measures_time: bool


FULL = Effort(200, 40, 120, 512, 4096, measures_time=True)
FAST = Effort(20, 30, 6, 64, 512, measures_time=False)


@dataclass(frozen=True)
class Subject:
    """A policy of one kind, with its parameters bound; `factory(env)` makes one."""

    kind: Kind
    factory: partial[Any]
    effort: Effort
    seed: int = 0

    @property
    def policy(self) -> type[Policy]:
        cls: type[Policy] = class_of(self.factory)
        return cls


@dataclass(frozen=True)
class Check:
    """One thing looked at: what holds where it passes. `run` raises PolicyFault, or NotChecked."""

    name: str
    run: Callable[[Subject], None]
