"""Eviction from the leaves only: around any policy, a block with resident children is passed over."""

from __future__ import annotations

from collections.abc import Sequence

from core.interfaces import Block, BlockKey, EvictionPolicy
from core.linked_index import LinkedIndex


class LeafFirst(EvictionPolicy):
    """Evicts what the policy names, unless that is the last block of a content which resident blocks continue.

    Such a block is *spared*: to the policy it is as if a request had acquired it, and when the last child has lost its
    content it is released again. A policy that ranks by what it knows of a block (its count, when it was registered)
    then ranks it as before; one that ranks by release takes it for fresh. LRU never meets one: releases go leaf to
    root, so a parent is always released after its children (and `LeafFirst` over LRU decides what LRU decides).

    A block is spared at most once per release or loss of its last child, so a victim costs amortised O(1) calls of the
    policy. Were all candidates spared, which happens only where sequences give up beginnings that they still build on
    (sliding windows), the one spared first goes.
    """

    is_prefix_closed = True

    def __init__(self, policy: EvictionPolicy, index: LinkedIndex) -> None:
        super().__init__(policy.env)
        self._policy = policy
        self._index = index
        self._num_offered = 0  # blocks that the policy could name
        self._spared: dict[BlockKey, Block] = {}

    def on_release(self, blocks: Sequence[Block]) -> None:
        self._num_offered += len(blocks)
        self._policy.on_release(blocks)

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        if self._spared:
            blocks = [block for block in blocks if not self._was_spared(block)]
        if blocks:
            self._num_offered -= len(blocks)
            self._policy.on_acquire(blocks)

    def _was_spared(self, block: Block) -> bool:
        if block.key is None or self._spared.get(block.key) is not block:
            return False
        del self._spared[block.key]
        return True

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        while self._num_offered:
            self._num_offered -= 1
            block = self._policy.pop_victim(incoming)
            if block.key is None or not self._index.would_orphan(block):
                return block
            self._spared[block.key] = block
        return self._spared.pop(next(iter(self._spared)))

    def on_insert(self, blocks: Sequence[Block]) -> None:
        self._policy.on_insert(blocks)

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        self._policy.on_hit(blocks, readmission)

    def on_evict(self, block: Block) -> None:
        """Told while the block is still in the index."""
        self._policy.on_evict(block)
        parent = self._index.parent(block)
        if parent in self._spared and self._index.num_children(parent) == 1:
            self.on_release((self._spared.pop(parent),))

    def eviction_order(self) -> list[Block]:
        """All evictable blocks in the policy's order; those that have resident children are passed over in it."""
        return [*self._policy.eviction_order(), *self._spared.values()]
