"""Base of policies that know content from its registration to its eviction, referenced or not."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv


class ContentEviction(EvictionPolicy):
    """Tells the steps in a content's life one block at a time: `enter`, `hit`, `wake`, `rest`, and `choose` or `drop`.

    Blocks without content (released under free_order=append_all) are worth nothing to anybody: they go first, in order
    of release, and the hooks hear nothing of them. What is kept for the ghosts of evicted content is kept by key in
    `choose`: equal content may be resident twice, and each of its blocks has a life of its own.

    A block that was chosen but spared (`pool.leaf_first`) enters anew, like content that was evicted and came back.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._blank: deque[Block] = deque()
        self._num_resting = 0  # evictable blocks with content
        self._chosen: set[Block] = set()  # those of which no eviction was told: the one being evicted, or spared ones

    @abstractmethod
    def enter(self, block: Block) -> None:
        """New content, which a request references."""

    def hit(self, block: Block) -> None:
        """A request was admitted on this content, which others may reference already."""

    def wake(self, block: Block) -> None:
        """The reference count rose from 0: not evictable."""

    @abstractmethod
    def rest(self, block: Block) -> None:
        """The reference count fell to 0: evictable."""

    @abstractmethod
    def choose(self, incoming: BlockKey | None) -> Block:
        """Removes and returns one of the resting blocks; there is one. It still has its key."""

    @abstractmethod
    def drop(self, block: Block) -> None:
        """The registration of a referenced block was taken back: its content never came to be."""

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.enter(block)

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            self._reenter(block)
            self.hit(block)

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        self._num_resting -= len(blocks)
        for block in blocks:
            self.wake(block)

    def on_release(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            if block.key is None:
                self._blank.append(block)
            else:
                self._num_resting += 1
                self._reenter(block)
                self.rest(block)

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        if self._blank:
            return self._blank.popleft()
        self._num_resting -= 1
        block = self.choose(incoming)
        self._chosen.add(block)
        return block

    def on_evict(self, block: Block) -> None:
        self._chosen.discard(block)
        if block.ref_count:
            self.drop(block)

    def _reenter(self, block: Block) -> None:
        if block in self._chosen:
            self._chosen.remove(block)
            self.enter(block)

    def eviction_order(self) -> list[Block]:
        """What a twin of this policy gives up, one block after the other."""
        twin = copy.deepcopy(self, {id(self.env): self.env})
        return [twin.pop_victim(None) for _ in range(len(self._blank) + self._num_resting)]
