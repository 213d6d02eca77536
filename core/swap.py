"""Host memory for preemption by SWAP: where the KV of a swapped-out request waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.interfaces import BlockKey

if TYPE_CHECKING:
    from core.request import Sequence


@dataclass(slots=True)
class SwappedBlock:
    """One position of a swapped-out block table: a copy on the host, or a block left behind, named by its key."""

    host_id: int | None
    key: BlockKey | None


@dataclass(slots=True)
class SwappedKV:
    """What a swapped-out request had, sequence by sequence: tokens with KV, and its tables (one per KV group)."""

    sequences: list[Sequence]
    num_computed: list[int]
    tables: list[list[list[SwappedBlock | None]]] = field(default_factory=list)
    host_ids: list[int] = field(default_factory=list)


class HostPool:
    """Free host blocks, as a stack. Every host block is pinned while it is used: nothing here is evictable."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_available(self) -> int:
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def release(self, host_ids: list[int]) -> None:
        self._free.extend(reversed(host_ids))
