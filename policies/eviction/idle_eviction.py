"""Base of policies that go by when a block was last used."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv


class LastUse(NamedTuple):
    """When the last reference to a block was released, and the how-manieth release it was."""

    time_ps: int
    number: int


class IdleEviction(EvictionPolicy):
    """Keeps when each evictable block was last used, and tells `rest`, `wake` and `choose`, one block at a time.

    Blocks without content (released under free_order=append_all) go first, in order of release, and the hooks hear
    nothing of them. A block that was chosen but spared (`pool.leaf_first`) rests again with the use it had.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self.last_use: dict[Block, LastUse] = {}
        self._num_releases = 0
        self._num_resting = 0  # evictable blocks with content
        self._chosen: set[Block] = set()  # chosen, and not known to be evicted
        self._blank: deque[Block] = deque()

    @abstractmethod
    def rest(self, block: Block, use: LastUse) -> None:
        """Evictable from now on."""

    @abstractmethod
    def wake(self, block: Block) -> None:
        """Not evictable any more; it still has its `last_use`."""

    @abstractmethod
    def choose(self) -> Block:
        """Removes and returns one of the resting blocks; there is one."""

    def on_release(self, blocks: Sequence[Block]) -> None:
        now_ps = self.env.now()
        for block in blocks:
            if block.key is None:
                self._blank.append(block)
                continue
            if block in self._chosen:
                self._chosen.remove(block)
            else:
                self._num_releases += 1
                self.last_use[block] = LastUse(now_ps, self._num_releases)
            self._num_resting += 1
            self.rest(block, self.last_use[block])

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            if block in self._chosen:
                self._chosen.remove(block)
                del self.last_use[block]

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        self._num_resting -= len(blocks)
        for block in blocks:
            self.wake(block)
            del self.last_use[block]

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        if self._blank:
            return self._blank.popleft()
        self._num_resting -= 1
        block = self.choose()
        self._chosen.add(block)
        return block

    def on_evict(self, block: Block) -> None:
        self._chosen.discard(block)
        self.last_use.pop(block, None)

    def eviction_order(self) -> list[Block]:
        """What a twin of this policy gives up, one block after the other."""
        twin = copy.deepcopy(self, {id(self.env): self.env})
        order = []
        for _ in range(len(self._blank) + self._num_resting):
            order.append(twin.pop_victim(None))
            if order[-1].key is not None:
                twin.on_evict(order[-1])
        return order
