"""Uniformly random: what any policy should beat."""

from __future__ import annotations

import random
from collections.abc import Sequence

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv


class Random(EvictionPolicy):
    """Evicts any evictable block with equal chance, from the run's seed. O(1) each."""

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._rng = random.Random(env.seed)
        self._blocks: list[Block] = []
        self._place: dict[Block, int] = {}

    def on_release(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._place[block] = len(self._blocks)
            self._blocks.append(block)

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._remove(self._place[block])

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        return self._remove(self._rng.randrange(len(self._blocks)))

    def _remove(self, place: int) -> Block:
        """Fills the gap with the last block, so that removal is O(1)."""
        block, last = self._blocks[place], self._blocks.pop()
        if last is not block:
            self._blocks[place] = last
            self._place[last] = place
        del self._place[block]
        return block

    def eviction_order(self) -> list[Block]:
        """The order in which the generator, as it stands, would draw them."""
        rng = random.Random()
        rng.setstate(self._rng.getstate())
        left, order = list(self._blocks), []
        while left:
            place = rng.randrange(len(left))
            block, last = left[place], left.pop()
            if last is not block:
                left[place] = last
            order.append(block)
        return order
