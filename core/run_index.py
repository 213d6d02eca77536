"""The prefix index of blocks that are kept as runs: which blocks hold which content, piece by piece of a text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from core.content import BlockKeys
from core.numbered_text import NONE, ContentNumbers, NumberedText


class RunIndex:
    """As `HashIndex`, of ids, by the numbers of contents. No content outlives what is before it in its text.

    Content that only its own sequence could ask for enters when that may come back.
    """

    def __init__(self) -> None:
        self.numbers = ContentNumbers()
        self._oldest = array("q")  # by number: the block that has held this content for longest; -1: none does
        self._younger: dict[int, list[int]] = {}

    def text(self, keys: BlockKeys) -> NumberedText:
        text = self.numbers.text(keys)
        self._make_room()
        return text

    def _make_room(self) -> None:
        num_new = self.numbers.num_numbers - len(self._oldest)
        if num_new:
            self._oldest += NONE * num_new

    def get(self, number: int) -> int | None:
        """The oldest block that holds this content. O(1)."""
        block_id = self._oldest[number]
        return None if block_id < 0 else block_id

    def leading(self, text: NumberedText, num_blocks: int) -> array[int]:
        """Blocks of the longest run of its content, from its first block on, and no more than so many, that is held."""
        found = array("q")
        oldest = self._oldest
        for begin, end, shift in text.pieces(0, min(num_blocks, text.num_numbered)):
            first, last = begin + shift, end + shift
            if oldest[first] < 0:
                break
            if oldest[last - 1] < 0:
                found += oldest[first : self._end_of_held(first, last - 1)]
                break
            found += oldest[first:last]
        return found

    def _end_of_held(self, first: int, last: int) -> int:
        """The first of these consecutive contents that nothing holds. `first` is held, `last` is not."""
        oldest = self._oldest
        while last - first > 1:
            middle = (first + last) // 2
            if oldest[middle] < 0:
                last = middle
            else:
                first = middle
        return last

    def num_leading(self, keys: BlockKeys, num_blocks: int) -> int:
        """As many as `leading` finds of a text that need not come in: it gets no numbers."""
        num_held, oldest = 0, self._oldest
        for number in self.numbers.known(keys):
            for part in range(number, number + keys.blocks_a_name):
                if num_held == num_blocks or oldest[part] < 0:
                    return num_held
                num_held += 1
        return num_held

    def insert(self, text: NumberedText, first: int, last: int, ids: array[int]) -> None:
        """Its blocks from place `first` up to, not including, `last` are these: some perhaps known to be so already."""
        oldest = self._oldest
        for begin, end, shift in text.pieces(first, last):
            place = begin
            while place < end and oldest[place + shift] >= 0:
                self._add(place + shift, ids[place - first])
                place += 1
            if place < end:
                oldest[place + shift : end + shift] = ids[place - first : end - first]

    def _add(self, number: int, block_id: int) -> None:
        """To the blocks of a content that others hold."""
        if self._oldest[number] != block_id:
            younger = self._younger.setdefault(number, [])
            if block_id not in younger:
                younger.append(block_id)

    def insert_own(self, text: NumberedText, last: int, table: array[int]) -> None:
        """The sequence stops, and will ask for the text of its own that is in its first `last` blocks."""
        first = text.num_shared
        if last > first:
            self.numbers.extend(text, last)
            self._make_room()
            self.insert(text, first, last, table[first:last])

    def holds(self, number: int, block_id: int) -> bool:
        return self._oldest[number] == block_id or block_id in self._younger.get(number, ())

    def forget(self, text: NumberedText, first: int, last: int, ids: Sequence[int]) -> None:
        """Its blocks from place `first` up to, not including, `last`, which were these, hold it no more. The next
        oldest with the same content serve from now on.
        """
        for begin, end, shift in text.pieces(first, last):
            if self._younger and self._has_younger(begin + shift, end + shift):
                for place in range(begin, end):
                    self.remove(place + shift, ids[place - first])
            else:
                self._oldest[begin + shift : end + shift] = NONE * (end - begin)

    def _has_younger(self, first: int, last: int) -> bool:
        """Does any of these consecutive contents stand in several blocks? O(the lesser of those, and these)."""
        younger = self._younger
        if len(younger) < last - first:
            return any(first <= number < last for number in younger)
        return any(number in younger for number in range(first, last))

    def remove(self, number: int, block_id: int) -> None:
        """Forgets this block."""
        younger = self._younger.get(number)
        if younger is None:
            self._oldest[number] = -1
            return
        if self._oldest[number] == block_id:
            self._oldest[number] = younger.pop(0)
        else:
            younger.remove(block_id)
        if not younger:
            del self._younger[number]
