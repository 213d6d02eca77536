"""Blocks in order of their scores, many at a time."""

from __future__ import annotations

import heapq
from array import array
from typing import Final

import numpy as np

from core.batch_eviction import FEW, Ints, array_of
from core.id_line import IdLine

_MORE_THAN_ENOUGH: Final = 64
_FEW_GONE: Final = 4096


class _Line:
    """Blocks of one score: ids, and as the how-manieth each came in."""

    __slots__ = ("ids", "numbers")

    def __init__(self) -> None:
        self.ids, self.numbers = IdLine(), IdLine()


class BatchOrder:
    """As `PriorityOrder`, by ids: the least score goes first; of equal scores the block that came in earlier.

    Whoever leaves early keeps its place in line, under a number that is no longer its own.
    """

    def __init__(self, num_ids: int) -> None:
        self._lines: dict[int, _Line] = {}  # by score
        self._heap: list[int] = []  # the scores that have a line
        self._num_come = self._num_blocks = self._num_gone = 0
        self._number_of: Ints = np.zeros(num_ids, dtype=np.int64)  # by id: as the how-manieth it came in; 0: it is out
        self._number = self._number_of.data  # where one is looked up

    def put(self, ids: Ints, scores: Ints) -> None:
        """An array operation for each stretch of equal scores."""
        numbers = np.arange(len(ids)) + (self._num_come + 1)
        self._number_of[ids] = numbers
        self._num_come += len(ids)
        self._num_blocks += len(ids)
        bounds: list[int] = (scores[1:] != scores[:-1]).nonzero()[0].tolist()
        begin = 0
        for last in [*bounds, len(ids) - 1]:
            line = self._line(int(scores[begin]))
            line.ids.append(ids[begin : last + 1])
            line.numbers.append(numbers[begin : last + 1])
            begin = last + 1

    def _line(self, score: int) -> _Line:
        line = self._lines.get(score)
        if line is None:
            line = self._lines[score] = _Line()
            heapq.heappush(self._heap, score)
        return line

    def discard(self, ids: Ints) -> None:
        """These, which are in the order, leave it."""
        self._number_of[ids] = 0
        self._num_blocks -= len(ids)
        self._num_gone += len(ids)
        if self._num_gone > self._num_blocks + _FEW_GONE:
            self._forget_gone()

    def _forget_gone(self) -> None:
        lines, self._lines, self._heap, self._num_gone = self._lines, {}, [], 0
        for score, old in lines.items():
            ids, numbers = old.ids.first(old.ids.length), old.numbers.first(old.numbers.length)
            are_there = self._number_of[ids] == numbers
            if np.count_nonzero(are_there):
                line = self._line(score)
                line.ids.append(ids[are_there])
                line.numbers.append(numbers[are_there])

    def pop(self, num_blocks: int, victims: array[int]) -> int:
        """Removes some of the first, of one score, adding them to `victims`: no more than so many in all. Returns their
        score. There are enough.
        """
        num_before = len(victims)
        while True:
            score = self._heap[0]
            self.pass_first(num_blocks, victims)
            if len(victims) > num_before:
                return score

    def may_have(self, highest: int) -> bool:
        """Is any block's score as low as this? There are such, or were until lately."""
        return bool(self._heap) and self._heap[0] <= highest

    def pass_first(self, num_blocks: int, victims: array[int]) -> None:
        """As `pop`, but only of the least score, of which there may be none left."""
        score, num_before = self._heap[0], len(victims)
        line = self._lines[score]
        if not line.ids.length:
            heapq.heappop(self._heap)
            del self._lines[score]
        elif num_blocks - num_before > FEW:
            victims += self._pass_many(line, num_blocks - num_before)
        else:
            self._pass_one(line, victims)
        self._num_blocks -= len(victims) - num_before

    def _pass_many(self, line: _Line, most: int) -> array[int]:
        ids = line.ids.first(2 * most + _MORE_THAN_ENOUGH)
        numbers = line.numbers.first(len(ids))
        found = (self._number_of[ids] == numbers).nonzero()[0][:most]
        num_passed = int(found[-1]) + 1 if len(found) == most else len(ids)
        line.ids.drop(num_passed)
        line.numbers.drop(num_passed)
        self._num_gone -= num_passed - len(found)
        victims = ids[found]
        self._number_of[victims] = 0
        return array_of(victims)

    def _pass_one(self, line: _Line, victims: array[int]) -> None:
        block_id = line.ids.pop()
        if self._number[block_id] == line.numbers.pop():
            self._number[block_id] = 0
            victims.append(block_id)
        else:
            self._num_gone -= 1
