"""Least recently used: vLLM 0.33's free queue, and SGLang's default in leaf form."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv


class LRU(EvictionPolicy):
    """Evicts the block that was released longest ago. O(1) each.

    A release goes leaf to root, so a tail is evicted before its beginning and no block outlives its parent.
    """

    is_prefix_closed = True
    evicts_in_order_of_release = True

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._order: OrderedDict[Block, None] = OrderedDict()

    def on_release(self, blocks: Sequence[Block]) -> None:
        self._order.update(dict.fromkeys(blocks))

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            del self._order[block]

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        return self._order.popitem(last=False)[0]

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        pop = self._order.popitem
        return [pop(last=False)[0] for _ in incoming]

    def eviction_order(self) -> list[Block]:
        return list(self._order)
