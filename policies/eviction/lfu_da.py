"""LFU with dynamic aging: what was popular once does not stay for ever."""

from __future__ import annotations

from collections.abc import Sequence

from core.interfaces import Block, PolicyEnv, PriorityEviction


class LFUDA(PriorityEviction):
    """Evicts the least key, K = uses + L, where L is the key of what was evicted last and K is set anew at each use.

    Of equals, the one released longest ago. Arlitt, Cherkasova, Dilley, Friedrich and Jin, Evaluating content
    management techniques for Web proxy caches, 2000. O(log n) each.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._age = 0
        self._num_uses: dict[Block, int] = {}

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._num_uses[block] = 1
            block.link = 1 + self._age

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            self._num_uses[block] += 1
            block.link = self._num_uses[block] + self._age

    def on_evict(self, block: Block) -> None:
        if block.ref_count == 0:
            self._age = block.link
        del self._num_uses[block]
        block.link = None

    def priority(self, block: Block) -> float:
        return block.link or 0  # 0: released without content (free_order=append_all)
