"""CLOCK, or second chance: LRU's cheap approximation."""

from __future__ import annotations

from collections import OrderedDict

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction


class Clock(ContentEviction):
    """A ring in order of registration. A hit counts, up to 2^bits - 1; the hand evicts the first block that it finds at
    0, and takes one off the count of those that it passes. Corbató 1968, with 1 bit. Amortised O(1) each.

    A referenced block that the hand meets leaves the ring, and comes back behind the hand when it is released: so the
    hand never walks twice over what it cannot have.
    """

    def __init__(self, env: PolicyEnv, bits: int = 1) -> None:
        super().__init__(env)
        if bits < 1:
            raise InputError(f"eviction.bits={bits}: expected a whole number of at least 1")
        self._most = (1 << bits) - 1
        self._count: dict[Block, int] = {}
        self._ring: OrderedDict[Block, None] = OrderedDict()  # the hand is before the first

    def enter(self, block: Block) -> None:
        self._count[block] = 0
        self._ring[block] = None

    def hit(self, block: Block) -> None:
        if self._count[block] < self._most:
            self._count[block] += 1

    def rest(self, block: Block) -> None:
        self._ring.setdefault(block)

    def choose(self, incoming: BlockKey | None) -> Block:
        while True:
            block, _ = self._ring.popitem(last=False)
            count = self._count[block]
            if count:
                self._count[block] = count - 1
            if block.ref_count == 0:
                if count == 0:
                    return block
                self._ring[block] = None

    def evicted(self, block: Block) -> None:
        del self._count[block]

    def dropped(self, block: Block) -> None:
        del self._count[block]
        self._ring.pop(block, None)
