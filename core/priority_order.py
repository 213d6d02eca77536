"""Blocks in order of their scores."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from core.block import Block
from core.line import Line

_FEW_EMPTY = 64


class PriorityOrder:
    """The least score goes first; of equal scores the block that came in earlier.

    A line for each score there is, so that blocks of equal scores cost O(1); O(log scores) otherwise, amortised.
    """

    __slots__ = ("_heap", "_line_of", "_lines", "_num_blocks")

    def __init__(self) -> None:
        self._lines: dict[Any, Line[Block]] = {}  # by score
        self._heap: list[Any] = []  # the scores that have a line
        self._line_of: list[Line[Block] | None] = []  # by block id
        self._num_blocks = 0

    def put(self, blocks: Sequence[Block], scores: Sequence[Any]) -> None:
        line_of = self._line_of
        for block, score in zip(blocks, scores, strict=True):
            line = self._lines.get(score)
            if line is None:
                line = self._lines[score] = Line()
                heapq.heappush(self._heap, score)
            line.append(block)
            block_id = block.block_id
            while block_id >= len(line_of):
                line_of.append(None)
            line_of[block_id] = line
        self._num_blocks += len(blocks)

    def discard(self, blocks: Sequence[Block]) -> None:
        """These, which are in the order, leave it."""
        for block in blocks:
            line = self._line_of[block.block_id]
            assert line is not None
            line.discard(block)
            self._line_of[block.block_id] = None
        self._num_blocks -= len(blocks)
        if len(self._heap) > 2 * self._num_blocks + _FEW_EMPTY:
            self._lines = {score: line for score, line in self._lines.items() if line.length}
            self._heap = [*self._lines]
            heapq.heapify(self._heap)

    def pop(self) -> Block:
        """Removes and returns the first. Raises IndexError where there is none."""
        while True:
            score = self._heap[0]
            line = self._lines[score]
            if line.length:
                block = line.pop()
                self._line_of[block.block_id] = None
                self._num_blocks -= 1
                return block
            heapq.heappop(self._heap)
            del self._lines[score]

    def blocks(self) -> list[Block]:
        """All, first to last. O(n log n)."""
        return [block for score in sorted(self._heap) for block in self._lines[score].items()]
