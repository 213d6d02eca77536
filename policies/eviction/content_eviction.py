"""Base of policies that know content from its registration to its eviction, referenced or not."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from mypy_extensions import mypyc_attr

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv


@mypyc_attr(allow_interpreted_subclasses=True)
class ContentEviction(EvictionPolicy):
    """Tells the steps in a content's life one block at a time: `enter`, `hit`, `wake` and `rest`, and how it ends.

    Blocks without content (released under free_order=append_all) are worth nothing to anybody: they go first, in order
    of release, and the hooks hear nothing of them. Equal content may be resident twice, and each of its blocks has a
    life of its own.
    """

    to_define: ClassVar[tuple[str, ...]] = ("choose", "dropped", "enter", "evicted", "rest")  # by those that derive

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._blank: deque[Block] = deque()
        self._num_resting = 0  # evictable blocks with content
        self.marks: list[int] = []  # by block id: what a policy notes of it, small numbers; 0 when content enters

    @abstractmethod
    def enter(self, block: Block) -> None:
        """New content, which a request references."""

    def hit(self, block: Block) -> None:
        """A request was admitted on this content, which others may reference already."""

    def wake(self, block: Block) -> None:
        """The reference count is about to rise from 0, or has just: not evictable."""

    @abstractmethod
    def rest(self, block: Block) -> None:
        """The reference count fell to 0: evictable."""

    @abstractmethod
    def choose(self, incoming: BlockKey | None) -> Block:
        """Takes one of the resting blocks out of the order and returns it; there is one.

        `evicted` follows, or the block is spared (`pool.leaf_first`): then it is as if it had been woken.
        """

    @abstractmethod
    def evicted(self, block: Block) -> None:
        """The chosen block loses its content; `block.key` still names it (for ghosts)."""

    @abstractmethod
    def dropped(self, block: Block) -> None:
        """The registration of a referenced block was taken back: its content never came to be."""

    def on_insert(self, blocks: Sequence[Block]) -> None:
        marks = self.marks
        for block in blocks:
            block_id = block.block_id
            while block_id >= len(marks):
                marks.append(0)
            marks[block_id] = 0
            self.enter(block)

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
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
                self.rest(block)

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        if self._blank:
            return self._blank.popleft()
        self._num_resting -= 1
        return self.choose(incoming)

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        victims = []
        for key in incoming:
            block = self.pop_victim(key)
            if block.key is not None:
                self.evicted(block)
            victims.append(block)
        return victims

    def on_evict(self, block: Block) -> None:
        if block.ref_count:
            self.dropped(block)
        else:
            self.evicted(block)

    def eviction_order(self) -> list[Block]:
        """What a twin of this policy gives up, one block after the other."""
        twin = copy.deepcopy(self, {id(self.env): self.env})
        order = []
        for _ in range(len(self._blank) + self._num_resting):
            order.append(twin.pop_victim(None))
            if order[-1].key is not None:
                twin.on_evict(order[-1])
        return order
