"""Least frequently used, with counts that outlive the content."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.lfu import LFU


class PerfectLFU(LFU):
    """Evicts the block whose content was used least often in the whole run; of equals, the one released longest ago.

    Breslau et al., INFOCOM 1999, call it perfect LFU. It keeps a count for every content it ever saw, or, with
    `num_ghosts`, for what was evicted last. O(log n) each.
    """

    def __init__(self, env: PolicyEnv, num_ghosts: int | None = None) -> None:
        super().__init__(env)
        if num_ghosts is not None and num_ghosts < 0:
            raise InputError(f"eviction.num_ghosts={num_ghosts}: expected a whole number from 0 on, or null")
        self._num_ghosts = num_ghosts
        self._ghosts: OrderedDict[BlockKey, int] = OrderedDict()  # uses of evicted content, oldest first

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            assert block.key is not None
            block.link = 1 + self._ghosts.pop(block.key, 0)

    def on_evict(self, block: Block) -> None:
        """Equal content that left from several blocks is one ghost; a registration taken back was no use."""
        assert block.key is not None
        num_uses = block.link - (block.ref_count > 0)
        if num_uses:
            self._ghosts[block.key] = self._ghosts.pop(block.key, 0) + num_uses
            if self._num_ghosts is not None and len(self._ghosts) > self._num_ghosts:
                self._ghosts.popitem(last=False)
        block.link = None
