"""SIEVE: CLOCK whose survivors stay where they are."""

from __future__ import annotations

from collections import OrderedDict

from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction


class Sieve(ContentEviction):
    """New blocks join at one end of a queue; a hand goes from the other end towards them, evicts the first block that
    was not hit since it last came by, and starts over at the end. Zhang et al., SIEVE, NSDI 2024. Amortised O(1) each.

    The queue is kept as what the hand has passed on this round, and what lies ahead of it. A referenced block that the
    hand meets leaves the queue, and comes back right behind the hand when it is released.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._was_hit: dict[Block, bool] = {}
        self._passed: OrderedDict[Block, None] = OrderedDict()
        self._ahead: OrderedDict[Block, None] = OrderedDict()  # oldest first

    def enter(self, block: Block) -> None:
        self._was_hit[block] = False
        self._ahead[block] = None

    def hit(self, block: Block) -> None:
        self._was_hit[block] = True

    def rest(self, block: Block) -> None:
        if block not in self._ahead:
            self._passed.setdefault(block)

    def choose(self, incoming: BlockKey | None) -> Block:
        while True:
            self._start_over_at_the_end()
            block, _ = self._ahead.popitem(last=False)
            if block.ref_count:
                self._was_hit[block] = False
            elif self._was_hit[block]:
                self._was_hit[block] = False
                self._passed[block] = None
            else:
                self._start_over_at_the_end()
                return block

    def _start_over_at_the_end(self) -> None:
        if not self._ahead:
            self._ahead, self._passed = self._passed, self._ahead

    def evicted(self, block: Block) -> None:
        del self._was_hit[block]

    def dropped(self, block: Block) -> None:
        del self._was_hit[block]
        self._ahead.pop(block, None)
        self._passed.pop(block, None)
