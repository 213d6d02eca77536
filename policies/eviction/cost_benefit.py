"""Cost-benefit: what it would cost to compute again, against how long nobody asked for it."""

from __future__ import annotations

from math import inf

import numpy as np

from core.candidate_heap import CandidateHeap
from core.interfaces import Block, PolicyEnv
from policies.eviction.idle_eviction import IdleEviction, LastUse
from policies.eviction.recompute_cost import LLAMA3_8B_TOKENS, RecomputeCost


class CostBenefit(IdleEviction):
    """Evicts the least retention value: cost of recomputing the block at its depth, over the time since its last use.

    Yu et al., Pensieve, EuroSys 2025. There the beginning of a conversation goes first, being cheapest, and a kernel
    computes it again under what follows; a prefix cache cannot use a text without its beginning, so here leaves only.
    The cost is modelled (`RecomputeCost`). Of equals, the one released longest ago.

    Among blocks of one depth the longest idle one is worth least, so one candidate per depth is compared:
    O(depths + log n) a victim, whatever the size of the pool.
    """

    leaf_first = True

    def __init__(self, env: PolicyEnv, attention_equals_linear_tokens: float = LLAMA3_8B_TOKENS) -> None:
        super().__init__(env)
        self._cost = RecomputeCost(env, attention_equals_linear_tokens)
        self._by_depth: list[CandidateHeap[Block]] = []
        self._costs = np.zeros(0)  # [depths]
        self._oldest_ps = np.zeros(0)  # last use of each depth's longest idle block, [depths]; inf: it has none
        self._oldest_number = np.zeros(0)  # its number

    def rest(self, block: Block, use: LastUse) -> None:
        if block.position >= len(self._by_depth):
            self._deepen(2 * block.position + 1)
        self._by_depth[block.position].put(block, use)
        self._look_at(block.position)

    def _deepen(self, num_depths: int) -> None:
        num_new = num_depths - len(self._by_depth)
        self._by_depth += [CandidateHeap() for _ in range(num_new)]
        self._costs = np.array([self._cost.at(position) for position in range(num_depths)])
        self._oldest_ps = np.append(self._oldest_ps, np.full(num_new, inf))
        self._oldest_number = np.append(self._oldest_number, np.full(num_new, inf))

    def wake(self, block: Block) -> None:
        self._by_depth[block.position].discard(block)
        self._look_at(block.position)

    def _look_at(self, depth: int) -> None:
        candidates = self._by_depth[depth]
        self._oldest_ps[depth], self._oldest_number[depth] = candidates.first_rank() if candidates else (inf, inf)

    def choose(self) -> Block:
        idle_per_cost = (self.env.now() - self._oldest_ps) / self._costs
        worst = np.flatnonzero(idle_per_cost == idle_per_cost.max())
        depth = int(worst[self._oldest_number[worst].argmin()])
        block = self._by_depth[depth].pop()
        self._look_at(depth)
        return block
