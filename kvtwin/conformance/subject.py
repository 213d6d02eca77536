"""What is checked, and how thoroughly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.interfaces import BlockKey, Policy, PolicyEnv
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

    def make(self, now: Callable[[], int], num_blocks: int | None, block_size_tokens: int = 4) -> Any:
        """One policy, with a made-up future of blocks with keys (text, depth) if it wants to know one.

        Raises InputError if it cannot be made.
        """
        future = _FixedFuture() if self.policy.clairvoyant else None
        return self.factory(PolicyEnv(now, num_blocks, block_size_tokens, self.seed, future))


class _FixedFuture:
    """Some content is never asked for again; of the other the beginnings come first."""

    def next_use(self, key: BlockKey) -> int | None:
        assert isinstance(key, tuple)
        text, depth = key
        return None if text == 0 else 10 * int(text) + int(depth)


@dataclass(frozen=True)
class Check:
    """One thing looked at: what holds where it passes. `run` raises PolicyFault, or NotChecked."""

    name: str
    run: Callable[[Subject], None]
