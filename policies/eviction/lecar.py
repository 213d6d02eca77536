"""LeCaR: LRU and LFU draw lots, with odds that regret changes."""

from __future__ import annotations

import heapq
import math
import random
from collections import OrderedDict

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.shares import UNBOUNDED


class LeCaR(ContentEviction):
    """Each victim is LRU's or LFU's, drawn by weight from the run's seed, and is remembered as theirs. When content
    comes back that one of them gave up, the other's weight grows by e^(rate * r), and the less the longer ago it was:
    r = discount^(time / capacity), time counted in uses.

    Vietri et al., HotStorage 2018: learning rate 0.45, discount 0.005, as many ghosts for each as the pool has blocks.
    O(log n) each.
    """

    def __init__(self, env: PolicyEnv, learning_rate: float = 0.45, discount: float = 0.005) -> None:
        super().__init__(env)
        if not 0 < discount <= 1:
            raise InputError(f"eviction.discount={discount}: expected a ratio in (0, 1]")
        if not 0 <= learning_rate < math.inf:
            raise InputError(f"eviction.learning_rate={learning_rate}: expected a number from 0 on")
        self._most = UNBOUNDED if env.num_blocks is None else env.num_blocks
        self._learning_rate = learning_rate
        self._discount = discount ** (1 / self._most)
        self._rng = random.Random(env.seed)
        self._clock = 0
        self._lru_weight = 0.5
        self._num_uses: dict[Block, int] = {}
        self._resting: OrderedDict[Block, int] = OrderedDict()  # released longest ago first; number of the heap entry
        self._by_uses: list[tuple[int, int, Block]] = []  # some stale
        self._num_released = 0
        self._was_lru: dict[Block, bool] = {}  # whose choice the block is that is being evicted
        self._ghosts: tuple[OrderedDict[BlockKey, int], OrderedDict[BlockKey, int]] = (OrderedDict(), OrderedDict())
        """When LFU and LRU gave up what, oldest first."""

    def enter(self, block: Block) -> None:
        self._clock += 1
        self._num_uses[block] = 1
        self._learn(block.key)

    def hit(self, block: Block) -> None:
        self._clock += 1
        self._num_uses[block] += 1

    def _learn(self, key: BlockKey | None) -> None:
        """Where `key` is a ghost, when it makes room or when it comes in, whatever is first."""
        for was_lru, ghosts in enumerate(self._ghosts):
            given_up = ghosts.pop(key, None)
            if given_up is not None:
                grown = math.exp(self._learning_rate * self._discount ** (self._clock - given_up))
                weights = [1 - self._lru_weight, self._lru_weight]  # of LFU and LRU
                weights[not was_lru] *= grown
                self._lru_weight = weights[1] / sum(weights)

    def wake(self, block: Block) -> None:
        self._resting.pop(block, None)

    def rest(self, block: Block) -> None:
        self._num_released += 1
        self._resting[block] = self._num_released
        heapq.heappush(self._by_uses, (self._num_uses[block], self._num_released, block))
        if len(self._by_uses) > 2 * len(self._resting) + 64:
            self._by_uses = [entry for entry in self._by_uses if self._resting.get(entry[2]) == entry[1]]
            heapq.heapify(self._by_uses)

    def choose(self, incoming: BlockKey | None) -> Block:
        self._learn(incoming)
        is_lru = self._rng.random() < self._lru_weight
        block = next(iter(self._resting)) if is_lru else self._least_used()
        del self._resting[block]
        self._was_lru[block] = is_lru
        return block

    def _least_used(self) -> Block:
        while True:
            _, number, block = heapq.heappop(self._by_uses)
            if self._resting.get(block) == number:
                return block

    def evicted(self, block: Block) -> None:
        assert block.key is not None
        del self._num_uses[block]
        ghosts = self._ghosts[self._was_lru.pop(block)]
        ghosts.pop(block.key, None)
        ghosts[block.key] = self._clock
        if len(ghosts) > self._most:
            ghosts.popitem(last=False)

    def dropped(self, block: Block) -> None:
        del self._num_uses[block]
        self._was_lru.pop(block, None)
