"""Most recently used: the mirror image of LRU, for loops that are longer than the cache."""

from __future__ import annotations

from collections.abc import Sequence

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv


class MRU(EvictionPolicy):
    """Evicts the block that was released last; SGLang's strategy `mru`. O(1) each.

    A release ends with the root, so a chain loses its beginning first and its rest is held in vain.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._order: dict[Block, None] = {}  # released last comes last

    def on_release(self, blocks: Sequence[Block]) -> None:
        self._order.update(dict.fromkeys(blocks))

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            del self._order[block]

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        return self._order.popitem()[0]

    def eviction_order(self) -> list[Block]:
        return list(reversed(self._order))
