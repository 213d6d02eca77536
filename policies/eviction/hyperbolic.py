"""Hyperbolic caching: how often content was used per time in the cache."""

from __future__ import annotations

import random

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction


class Hyperbolic(ContentEviction):
    """Evicts the block with the fewest uses per time since its content came in; time is counted in uses of any block.

    Blankstein, Sen and Freedman, ATC 2017. The order changes as time goes by, so the paper looks at a random sample and
    evicts its least: of `num_samples` blocks (64), from the run's seed; O(num_samples) each. `exact` looks at all of
    them: O(n), for comparison.
    """

    def __init__(self, env: PolicyEnv, num_samples: int = 64, exact: bool = False) -> None:
        super().__init__(env)
        if num_samples < 1:
            raise InputError(f"eviction.num_samples={num_samples}: expected a whole number of at least 1")
        self._num_samples = num_samples
        self._exact = exact
        self._rng = random.Random(env.seed)
        self._clock = 0
        self._uses: dict[Block, tuple[int, int]] = {}  # how many, and when the content came in
        self._resting: list[Block] = []
        self._place: dict[Block, int] = {}

    def enter(self, block: Block) -> None:
        self._clock += 1
        self._uses[block] = (1, self._clock)

    def hit(self, block: Block) -> None:
        self._clock += 1
        num_uses, since = self._uses[block]
        self._uses[block] = (num_uses + 1, since)

    def wake(self, block: Block) -> None:
        """Fills the gap with the last block, so that this is O(1)."""
        place, last = self._place.pop(block, None), self._resting[-1] if self._resting else block
        if place is None:
            return
        self._resting.pop()
        if last is not block:
            self._resting[place] = last
            self._place[last] = place

    def rest(self, block: Block) -> None:
        self._place[block] = len(self._resting)
        self._resting.append(block)

    def choose(self, incoming: BlockKey | None) -> Block:
        resting = self._resting
        if not self._exact and len(resting) > self._num_samples:
            resting = [resting[int(self._rng.random() * len(resting))] for _ in range(self._num_samples)]
        block = min(resting, key=self._worth)
        self.wake(block)
        return block

    def _worth(self, block: Block) -> tuple[float, int]:
        """Uses per time; of equals the one that came in first is worth less."""
        num_uses, since = self._uses[block]
        return num_uses / (self._clock - since + 1), since

    def evicted(self, block: Block) -> None:
        del self._uses[block]

    def dropped(self, block: Block) -> None:
        del self._uses[block]
