"""A radix tree of blocks, as the pool sees it: an eviction policy that gives up whole leaves."""

from __future__ import annotations

from collections.abc import Sequence

from core.interfaces import Block, BlockKey, EvictionPolicy, LeafRanking
from core.radix_tree import RadixNode, RadixTree


class WholeLeaves(EvictionPolicy):
    """Evicts the leaves of a tree, in the order of a ranking. What may go is told by the tree's locks, which the block
    tables set (`core.radix_tables`), not by the hooks.

    Not prefix-closed in the sense of spans: a leaf that goes can hold more blocks than were wanted, and a waiting
    request that finds none of them any more may fit.
    """

    def __init__(self, ranking: LeafRanking, tree: RadixTree[Block]) -> None:
        super().__init__(ranking.env)
        self.tree = tree

    def on_release(self, blocks: Sequence[Block]) -> None:
        pass

    def on_acquire(self, blocks: Sequence[Block]) -> None:
        pass

    def pop_victim(self, incoming: BlockKey | None) -> Block:
        raise NotImplementedError("a leaf of a radix tree goes as a whole: `pop_victims`")

    def pop_victims(self, incoming: Sequence[BlockKey | None]) -> list[Block]:
        """All blocks of the leaves that go, each leaf from its end. O(log leaves) a leaf, amortised."""
        return _from_their_ends(self.tree.evict(len(incoming)))

    def eviction_order(self) -> list[Block]:
        return _from_their_ends(self.tree.eviction_order())


def _from_their_ends(leaves: list[RadixNode[Block]]) -> list[Block]:
    return [block for leaf in leaves for block in reversed(leaf.slots)]
