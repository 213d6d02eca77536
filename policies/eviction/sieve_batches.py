"""SIEVE for many blocks at a time."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from core.batch_eviction import FEW, BatchEviction, Ints, array_of, view_of
from core.id_line import IdLine

# Marks, and those that are resting.
_WAS_HIT: Final = 1
_IS_QUEUED: Final = 2
_IS_AWAKE: Final = 4
_VICTIM: Final = 2
_SURVIVOR: Final = 3
_MORE_THAN_ENOUGH: Final = 64


class SieveBatches(BatchEviction):
    """Decides as `policies.eviction.sieve.Sieve`, which says how. The hand treats at once what lies between it and the
    last victim that it is asked for.
    """

    def __init__(self, num_ids: int) -> None:
        self._passed, self._ahead = IdLine(), IdLine()
        self._marks_of = np.zeros(num_ids, dtype=np.int8)  # by id
        self._marks = self._marks_of.data  # where one is looked up
        # By mark: what becomes of it when the hand comes by. Whoever is awake leaves the queue.
        after = np.full(8, _IS_AWAKE, dtype=np.int8)
        after[_VICTIM], after[_SURVIVOR] = 0, _IS_QUEUED
        self._after = after

    def enter(self, ids: array[int]) -> None:
        if len(ids) <= FEW:
            for block_id in ids:
                self._marks[block_id] = _IS_QUEUED | _IS_AWAKE
                self._ahead.append_one(block_id)
            return
        each = view_of(ids)
        self._marks_of[each] = _IS_QUEUED | _IS_AWAKE
        self._ahead.append(each)

    def hit(self, ids: Ints) -> None:
        self._marks_of[ids] |= _WAS_HIT

    def wake(self, ids: Ints) -> None:
        self._marks_of[ids] |= _IS_AWAKE

    def rest(self, ids: Ints) -> None:
        marks = self._marks_of[ids]
        has_left = (marks & _IS_QUEUED) == 0
        self._marks_of[ids] = marks & _WAS_HIT | _IS_QUEUED
        if np.count_nonzero(has_left):
            self._passed.append(ids[has_left])

    def choose(self, num_blocks: int, incoming: Ints | None) -> array[int]:
        victims = array("q")
        while len(victims) < num_blocks:
            self._start_over_at_the_end()
            if num_blocks - len(victims) > FEW:
                victims += self._pass_many(num_blocks - len(victims))
            else:
                self._pass_one(victims)
        self._start_over_at_the_end()
        return victims

    def foresee(self, num_blocks: int) -> array[int]:
        """What enters joins the end that lies ahead: as many as the hand finds before it comes there."""
        victims = array("q")
        while len(victims) < num_blocks and self._ahead.length > 1:
            self._pass_one(victims)
        return victims

    def _start_over_at_the_end(self) -> None:
        if not self._ahead.length:
            self._ahead, self._passed = self._passed, self._ahead

    def _pass_many(self, most: int) -> array[int]:
        """The hand goes on, as far as to the last of so many victims. Returns those."""
        ids = self._ahead.first(most + most // 2 + _MORE_THAN_ENOUGH)
        marks = self._marks_of[ids]
        victims = (marks == _VICTIM).nonzero()[0][:most]
        if len(victims) == most:
            num_passed = int(victims[-1]) + 1
            ids, marks = ids[:num_passed], marks[:num_passed]
        self._ahead.drop(len(ids))
        self._marks_of[ids] = self._after.take(marks)
        self._passed.append(ids[marks == _SURVIVOR])
        return array_of(ids[victims])

    def _pass_one(self, victims: array[int]) -> None:
        """The hand passes one block, which may be a victim."""
        block_id = self._ahead.pop()
        mark = self._marks[block_id]
        if mark == _VICTIM:
            self._marks[block_id] = 0
            victims.append(block_id)
        elif mark == _SURVIVOR:
            self._marks[block_id] = _IS_QUEUED
            self._passed.append_one(block_id)
        else:
            self._marks[block_id] = _IS_AWAKE

    def dropped(self, ids: array[int]) -> None:
        self._ahead.remove(ids)
        self._passed.remove(ids)
        self._marks_of[view_of(ids)] = 0
