"""SIEVE: CLOCK whose survivors stay where they are."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from core.batch_eviction import Ints
from core.interfaces import Block, BlockKey, PolicyEnv
from core.line import Line
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.sieve_batches import SieveBatches

_WAS_HIT, _IN_ONE, _IN_OTHER = 1, 2, 4  # marks; a block in neither half is not in the queue


@mypyc_attr(allow_interpreted_subclasses=True)
class Sieve(ContentEviction):
    """New blocks join at one end of a queue; a hand goes from the other end towards them, evicts the first block that
    was not hit since it last came by, and starts over at the end. Zhang et al., SIEVE, NSDI 2024. Amortised O(1) each.

    The queue is kept as what the hand has passed on this round, and what lies ahead of it. A referenced block that the
    hand meets leaves the queue, and comes back right behind the hand when it is released.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._passed: Line[Block] = Line()
        self._ahead: Line[Block] = Line()
        self._is_passed, self._is_ahead = _IN_ONE, _IN_OTHER

    def in_batches(self, contents: Ints) -> SieveBatches:
        return SieveBatches(len(contents))

    def enter(self, block: Block) -> None:
        self.marks[block.block_id] = self._is_ahead
        self._ahead.append(block)

    def hit(self, block: Block) -> None:
        self.marks[block.block_id] |= _WAS_HIT

    def rest(self, block: Block) -> None:
        mark = self.marks[block.block_id]
        if mark <= _WAS_HIT:
            self.marks[block.block_id] = mark | self._is_passed
            self._passed.append(block)

    def choose(self, incoming: BlockKey | None) -> Block:
        while True:
            self._start_over_at_the_end()
            block = self._ahead.pop()
            mark = self.marks[block.block_id]
            self.marks[block.block_id] = 0
            if block.ref_count:
                continue
            if mark & _WAS_HIT:
                self.rest(block)
            else:
                self._start_over_at_the_end()
                return block

    def _start_over_at_the_end(self) -> None:
        if not self._ahead.length:
            self._ahead, self._passed = self._passed, self._ahead
            self._is_ahead, self._is_passed = self._is_passed, self._is_ahead

    def evicted(self, block: Block) -> None:
        """Nothing is remembered."""

    def dropped(self, block: Block) -> None:
        mark = self.marks[block.block_id]
        if mark & self._is_ahead:
            self._ahead.discard(block)
        elif mark & self._is_passed:
            self._passed.discard(block)
