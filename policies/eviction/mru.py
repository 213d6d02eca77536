"""Most recently used: the mirror image of LRU, for loops that are longer than the cache."""

from __future__ import annotations

from core.interfaces import Block, BlockKey
from policies.eviction.lru import LRU


class MRU(LRU):
    """Evicts the block that was released last; SGLang's strategy `mru`. O(1) each.

    A release ends with the root, so a chain loses its beginning first and its rest is held in vain.
    """

    is_prefix_closed = False

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        return self._order.popitem()[0]

    def eviction_order(self) -> list[Block]:
        return list(reversed(self._order))
