"""What a pool counts, in whatever form it keeps its blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from core.attribution import Attribution

UNBOUNDED = 1 << 62  # more than any run uses


class OutOfBlocksError(Exception):
    """The pool was asked for more than it has: the caller did not look at `num_available` first."""


class Pool(ABC):
    """The counts of a pool. Block ids count from `first_block_id`; `num_blocks=None` is unbounded."""

    def __init__(self, num_blocks: int | None, first_block_id: int) -> None:
        self.num_blocks = num_blocks
        self.first_block_id = first_block_id
        self.num_available = UNBOUNDED if num_blocks is None else num_blocks  # free and cached: what can be taken
        self.num_referenced = 0
        self.num_cached = 0  # with content, and nobody references them
        self.num_shared = 0  # references beyond the first, of all blocks
        self.num_evictions = 0
        self.attribution: Attribution | None = None

    @property
    @abstractmethod
    def num_free(self) -> int:
        """Blocks that are taken before anything is evicted."""

    @abstractmethod
    def attribute_evictions(self, now: Callable[[], int], block_size: int) -> None:
        """From here on they are charged for what they cost. `now` tells picoseconds."""

    @property
    def num_orphans(self) -> int:
        """Registered blocks whose parent content is in no block, where that is counted."""
        return 0

    @property
    def counts_orphans(self) -> bool:
        """Whether it knows of the blocks which continues which."""
        return False
