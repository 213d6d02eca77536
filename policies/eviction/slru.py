"""SLRU: LRU in segments, which content climbs by its hits."""

from __future__ import annotations

from collections import OrderedDict

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.shares import UNBOUNDED


class SLRU(ContentEviction):
    """New content enters the lowest of `num_segments` equal segments, each hit lifts it by one, and what a segment has
    too many of falls back into the one below, least recently used first. The lowest segment's LRU block goes.

    Karedla, Love and Wherry, Caching strategies to improve disk system performance, 1994, with two segments
    (probationary and protected); libCacheSim has four, and the `warmup` rule: while a segment above has room, new
    content enters the lowest one that has. O(num_segments) each.
    """

    def __init__(self, env: PolicyEnv, num_segments: int = 4, warmup: bool = True) -> None:
        super().__init__(env)
        if num_segments < 1:
            raise InputError(f"eviction.num_segments={num_segments}: expected a whole number of at least 1")
        self._share = UNBOUNDED if env.num_blocks is None else env.num_blocks // num_segments
        self._is_warming_up = warmup
        self._segment: dict[Block, int] = {}
        self._num = [0] * num_segments  # resident blocks of each, referenced ones included
        self._resting: list[OrderedDict[Block, None]] = [OrderedDict() for _ in range(num_segments)]  # LRU first

    def enter(self, block: Block) -> None:
        lowest = 0
        if self._is_warming_up:
            lowest = next((segment for segment, num in enumerate(self._num) if num < self._share), 0)
        self._segment[block] = lowest
        self._num[lowest] += 1

    def hit(self, block: Block) -> None:
        segment = self._segment[block]
        if segment + 1 < len(self._num):
            self._move(block, segment + 1)

    def _move(self, block: Block, segment: int) -> None:
        self._num[self._segment[block]] -= 1
        self._num[segment] += 1
        self._segment[block] = segment

    def wake(self, block: Block) -> None:
        for resting in self._resting:
            resting.pop(block, None)

    def rest(self, block: Block) -> None:
        """Also lets fall what its segment, and then each below, has too many of."""
        top = self._segment[block]
        self._resting[top][block] = None
        for segment in range(top, 0, -1):
            while self._num[segment] > self._share and self._resting[segment]:
                fallen, _ = self._resting[segment].popitem(last=False)
                self._move(fallen, segment - 1)
                self._resting[segment - 1][fallen] = None

    def choose(self, incoming: BlockKey | None) -> Block:
        return next(resting for resting in self._resting if resting).popitem(last=False)[0]

    def evicted(self, block: Block) -> None:
        self._num[self._segment.pop(block)] -= 1

    def dropped(self, block: Block) -> None:
        self.evicted(block)
