"""SLRU as SGLang has it: two segments by the number of hits, without limits."""

from __future__ import annotations

from core.interfaces import Block, PolicyEnv
from policies.eviction.lfu import LFU


class HitSLRU(LFU):
    """Evicts content with fewer than `threshold` hits first, and LRU among equals; SGLang's strategy `slru`, with 2.

    Its protected segment has no limit and nobody falls out of it: content that was popular once stays as long as there
    is anything else. O(log n) each.
    """

    def __init__(self, env: PolicyEnv, threshold: int = 2) -> None:
        super().__init__(env)
        self._threshold = threshold

    def priority(self, block: Block) -> float:
        num_uses: int = block.link or 0
        return min(num_uses, 1) + (num_uses > self._threshold)  # the first use brought it in
