"""Which eviction cost which recompute, where blocks are kept as runs: piece by piece of a text."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from core.attribution import Attribution
from core.decision_log import DecisionLog
from core.numbered_text import NONE, NumberedText
from core.request import Sequence
from core.run_index import RunIndex


class RunAttribution(Attribution):
    """By the numbers of contents: 8 bytes for each that was ever met."""

    def __init__(self, index: RunIndex, log: DecisionLog, now: Callable[[], int], block_size: int) -> None:
        super().__init__(log, now, block_size)
        self._index = index
        # By content's number: the number of its last eviction and that of the content, added up; -1: it never was
        # evicted. Evictions go from the leaf on, so along a piece of a text the sum stays the same.
        self._sums = array("q")

    def _make_room(self) -> None:
        num_new = self._index.numbers.num_numbers - len(self._sums)
        if num_new:
            self._sums += NONE * num_new

    def evicted(self, text: NumberedText, first: int, last: int, block_ids: array[int]) -> None:
        """The blocks of a text from place `last` - 1 down to `first`, which are these, lost their content."""
        self._make_room()
        at_root = len(self._is_costly) + last - 1  # the number that the block at place 0 would have had
        for begin, end, shift in text.pieces(first, last):
            self._sums[begin + shift : end + shift] = array("q", (at_root + shift,)) * (end - begin)
        self._note(block_ids)

    def look_ahead(self, sequence: Sequence, num_computed: int) -> None:
        text, first = sequence.text, num_computed // self._block_size
        found: list[int] = []
        sequence.lost_ahead, sequence.first_lost = found, first
        if text is None:
            return
        self._make_room()
        last = min((sequence.num_known - 1) // self._block_size, text.num_numbered)
        cause, sums, index = -1, self._sums, self._index
        for begin, end, shift in text.pieces(first, last):
            for number in range(begin + shift, end + shift):
                if index.get(number) is None:
                    cause = sums[number] - number if sums[number] >= 0 else -1
                if cause < 0:
                    return
                found.append(cause)
