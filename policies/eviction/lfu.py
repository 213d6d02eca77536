"""Least frequently used, with counts that start anew at each registration."""

from __future__ import annotations

from collections.abc import Sequence

from core.interfaces import Block, PriorityEviction


class LFU(PriorityEviction):
    """Evicts the block with the fewest uses since its content was registered; of equals, the one released longest ago.

    What is known as in-cache LFU: an evicted content's count is forgotten (`lfu_perfect` keeps it). It never forgets
    what was popular once and is still there. O(log n) each.
    """

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.link = 1

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            block.link += 1

    def on_evict(self, block: Block) -> None:
        block.link = None

    def priority(self, block: Block) -> float:
        return block.link or 0  # 0: released without content (free_order=append_all)
