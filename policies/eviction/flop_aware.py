"""FLOP-aware: recency, and the compute that a hit saves per byte kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError
from core.interfaces import Block, PolicyEnv
from policies.eviction.idle_eviction import IdleEviction, LastUse

_FEWEST_SLOTS = 64


class FlopAware(IdleEviction):
    """Evicts the least S = recency + alpha * FLOP efficiency, both scaled to [0, 1] over all candidates: the time of
    the last use, and the prefill FLOP that a hit saves per byte. Pan et al., Marconi, MLSys 2025. Leaves only.

    A block's FLOP grow linearly with its depth, and all blocks have one size; scaled to [0, 1] that is the depth
    itself, whatever the model. `alpha=0` is LRU. Marconi finds alpha by replaying the traffic of a first window; here
    it is fixed, and a sweep finds it. Of equals, the one released longest ago.

    **O(candidates) a victim**: the scale moves with every candidate.
    """

    leaf_first = True

    def __init__(self, env: PolicyEnv, alpha: float = 1.0) -> None:
        super().__init__(env)
        if not isinstance(alpha, int | float) or not 0 <= alpha < float("inf"):
            raise InputError(f"eviction.alpha={alpha}: expected a number from 0 on")
        self._alpha = alpha
        self._slots: list[Block] = []
        self._slot: dict[Block, int] = {}
        self._table = np.zeros((3, _FEWEST_SLOTS))  # of each slot: time and number of the last use, depth

    def rest(self, block: Block, use: LastUse) -> None:
        slot = self._slot[block] = len(self._slots)
        self._slots.append(block)
        if slot == self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
        self._table[:, slot] = use.time_ps, use.number, block.position

    def wake(self, block: Block) -> None:
        """Fills the gap with the last block, so that this is O(1)."""
        slot, last = self._slot.pop(block), self._slots.pop()
        if last is not block:
            self._slots[slot] = last
            self._slot[last] = slot
            self._table[:, slot] = self._table[:, len(self._slots)]

    def choose(self) -> Block:
        time_ps, number, depth = self._table[:, : len(self._slots)]
        score = _scaled(time_ps) + self._alpha * _scaled(depth)
        least = np.flatnonzero(score == score.min())
        block = self._slots[int(least[number[least].argmin()])]
        self.wake(block)
        return block


def _scaled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """To [0, 1]; all 0 where they do not differ."""
    least, most = values.min(), values.max()
    return np.asarray((values - least) / (most - least if most > least else 1.0))
