"""GreedyDual-Size with Frequency for many blocks at a time, where all cost the same."""

from __future__ import annotations

from array import array

import numpy as np

from core.batch_eviction import FEW, BatchEviction, Ints, view_of
from core.batch_order import BatchOrder


class GDSFBatches(BatchEviction):
    """Decides as `policies.eviction.gdsf.GDSF` with `cost="unit"`, whose scores are whole numbers."""

    def __init__(self, num_ids: int) -> None:
        self._age = 0
        self._order = BatchOrder(num_ids)
        self._num_uses_of = np.zeros(num_ids, dtype=np.int64)  # by id
        self._score_of = np.zeros(num_ids, dtype=np.int64)  # by id
        self._num_uses, self._score = self._num_uses_of.data, self._score_of.data  # where one is looked up

    def enter(self, ids: array[int]) -> None:
        score = self._age + 1
        if len(ids) <= FEW:
            for block_id in ids:
                self._num_uses[block_id] = 1
                self._score[block_id] = score
            return
        each = view_of(ids)
        self._num_uses_of[each] = 1
        self._score_of[each] = score

    def hit(self, ids: Ints) -> None:
        num_uses = self._num_uses_of[ids] + 1
        self._num_uses_of[ids] = num_uses
        self._score_of[ids] = num_uses + self._age

    def wake(self, ids: Ints) -> None:
        self._order.discard(ids)

    def rest(self, ids: Ints) -> None:
        self._order.put(ids, self._score_of[ids])

    def choose(self, num_blocks: int, incoming: Ints | None) -> array[int]:
        victims = array("q")
        while len(victims) < num_blocks:
            self._age = max(self._age, self._order.pop(num_blocks, victims))
        return victims

    def foresee(self, num_blocks: int) -> array[int]:
        """What enters is scored by the age: as many as leave it as it is."""
        victims = array("q")
        while len(victims) < num_blocks and self._order.may_have(self._age):
            self._order.pass_first(num_blocks, victims)
        return victims

    def dropped(self, ids: array[int]) -> None:
        """They are in no order while they are referenced."""
