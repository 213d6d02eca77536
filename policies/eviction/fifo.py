"""First in, first out: the baseline that ignores hits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from core.interfaces import Block, PolicyEnv, PriorityEviction


class FIFO(PriorityEviction):
    """Evicts the block whose content was registered first, however often it was hit since. O(log n) each.

    Not prefix-closed: a parent can go before its child, which then holds memory that no look-up reaches.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._clock = count()

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.link = next(self._clock)

    def on_evict(self, block: Block) -> None:
        block.link = None

    def priority(self, block: Block) -> float:
        if block.link is None:  # released without content (free_order=append_all): in at its release
            block.link = next(self._clock)
        return float(block.link)
