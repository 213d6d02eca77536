"""SGLang's seven strategies: which leaf of the radix tree is evicted next (0.5.23, ranks as its golden logs show them).

They serve `pool.prefix_index=radix`. All are functions of the leaf alone; ties cannot occur among leaves.
"""

from __future__ import annotations

from core.interfaces import Leaf, LeafRanking, PolicyEnv


class RadixLRU(LeafRanking):
    """The leaf that was passed longest ago: SGLang's default."""

    ignores_repetition = True

    def rank(self, leaf: Leaf) -> int:
        return leaf.last_access


class RadixMRU(LeafRanking):
    """The leaf that was passed last: for loops larger than the cache."""

    ignores_repetition = True

    def rank(self, leaf: Leaf) -> int:
        return -leaf.last_access


class RadixFIFO(LeafRanking):
    """The oldest leaf, however often it was of use."""

    ignores_repetition = True

    def rank(self, leaf: Leaf) -> int:
        return leaf.created


class RadixFILO(LeafRanking):
    """The youngest leaf."""

    ignores_repetition = True

    def rank(self, leaf: Leaf) -> int:
        return -leaf.created


class RadixLFU(LeafRanking):
    """The leaf that the fewest requests published; of equals the one passed longest ago."""

    ignores_repetition = True

    def rank(self, leaf: Leaf) -> tuple[int, int]:
        return leaf.num_hits, leaf.last_access


class RadixPriority(LeafRanking):
    """The leaf of the least important requests; of equals the one passed longest ago."""

    ignores_repetition = True
    goes_by = frozenset({"priority"})

    def rank(self, leaf: Leaf) -> tuple[int, int]:
        return leaf.priority, leaf.last_access


class RadixSLRU(LeafRanking):
    """Leaves that `protected_hits` requests published outlive the others; within each part LRU (SGLang: 2)."""

    ignores_repetition = True

    def __init__(self, env: PolicyEnv, protected_hits: int = 2) -> None:
        super().__init__(env)
        self._protected_hits = protected_hits

    def rank(self, leaf: Leaf) -> tuple[bool, int]:
        return leaf.num_hits >= self._protected_hits, leaf.last_access
