"""ARC: recency and frequency, and a share between them that learns from its mistakes."""

from __future__ import annotations

from collections import OrderedDict

from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.shares import UNBOUNDED


class ARC(ContentEviction):
    """Content seen once (T1) and content seen again (T2), each in LRU order, each with ghosts (B1, B2).

    T1 aims at `p` blocks. A miss on a ghost of T1 says that T1 was too small and raises p by max(1, |B2| / |B1|); one
    on a ghost of T2 lowers it by max(1, |B1| / |B2|). Megiddo and Modha, FAST 2003. No parameters. O(1) each.

    The sizes count referenced blocks too. Where the list that should give a block has only referenced ones, the other
    gives.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._most = UNBOUNDED if env.num_blocks is None else env.num_blocks
        self._target = 0.0  # p
        self._is_frequent: dict[Block, bool] = {}
        self._num = [0, 0]  # resident blocks: |T1|, |T2|
        self._resting: tuple[OrderedDict[Block, None], OrderedDict[Block, None]] = (OrderedDict(), OrderedDict())
        self._ghosts: tuple[OrderedDict[BlockKey, bool], OrderedDict[BlockKey, bool]] = (OrderedDict(), OrderedDict())
        """B1 and B2: oldest first; whether p has learnt already from the miss that is being served."""

    def enter(self, block: Block) -> None:
        assert block.key is not None
        self._learn(block.key)
        came_back = any(ghosts.pop(block.key, None) is not None for ghosts in self._ghosts)
        self._is_frequent[block] = came_back
        self._num[came_back] += 1
        self._forget_ghosts()

    def _learn(self, key: BlockKey) -> None:
        """Moves p where `key` is a ghost: when it makes room, or when it comes in, whatever is first."""
        recent, frequent = self._ghosts
        if recent.get(key) is False:
            recent[key] = True
            self._target = min(self._most, self._target + max(1.0, len(frequent) / len(recent)))
        elif frequent.get(key) is False:
            frequent[key] = True
            self._target = max(0.0, self._target - max(1.0, len(recent) / len(frequent)))

    def _forget_ghosts(self) -> None:
        """|T1| + |B1| is at most the capacity, and all four are at most twice that."""
        recent, frequent = self._ghosts
        while recent and self._num[0] + len(recent) > self._most:
            recent.popitem(last=False)
        while frequent and sum(self._num) + len(recent) + len(frequent) > 2 * self._most:
            frequent.popitem(last=False)

    def hit(self, block: Block) -> None:
        if not self._is_frequent[block]:
            self._is_frequent[block] = True
            self._num[0] -= 1
            self._num[1] += 1

    def wake(self, block: Block) -> None:
        for resting in self._resting:
            resting.pop(block, None)

    def rest(self, block: Block) -> None:
        self._resting[self._is_frequent[block]][block] = None

    def choose(self, incoming: BlockKey | None) -> Block:
        if incoming is not None:
            self._learn(incoming)
        is_at_target = incoming in self._ghosts[1] and self._num[0] == self._target
        wants_recent = self._num[0] > self._target or is_at_target
        resting = self._resting[not wants_recent] or self._resting[wants_recent]
        return resting.popitem(last=False)[0]

    def evicted(self, block: Block) -> None:
        assert block.key is not None
        is_frequent = self._is_frequent[block]
        self.dropped(block)
        self._ghosts[not is_frequent].pop(block.key, None)  # equal content may have left from the other list
        self._ghosts[is_frequent].pop(block.key, None)
        self._ghosts[is_frequent][block.key] = False

    def dropped(self, block: Block) -> None:
        self._num[self._is_frequent.pop(block)] -= 1
