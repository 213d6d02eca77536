"""The prefix index of blocks that are kept as runs: which blocks hold which content, piece by piece of a text."""

from __future__ import annotations

from array import array

from core.content import BlockKeys
from core.id_index import IdIndex
from core.numbered_text import NO_TEXT, NONE, ContentNumbers, NumberedText

_NO_IDS = array("q")


class RunIndex(IdIndex):
    """Of runs: no content outlives what is before it in its text.

    Content that only its own sequence could ask for enters when that may come back. Losses are counted along the run;
    16 bytes for each content that was ever met, whether or not it is held.
    """

    def __init__(self) -> None:
        self.numbers = ContentNumbers()
        self._oldest = array("q")  # by number: the block that has held this content for longest; -1: none does
        self._younger: dict[int, list[int]] = {}
        # By number: as which loss this content was last evicted, and its number, added up; -1: it never was. Evictions
        # go from the leaf on, so along a piece of a text the sum stays the same.
        self._lost = array("q")
        self._num_losses = 0
        self._one = array("q", (0,))  # to be repeated: making an array of a number takes longer
        # Losses that are not yet in the columns: of a text, whose blocks are `_pending_ids`, places [begin, end).
        self._pending_text = NO_TEXT
        self._pending_ids = array("q")
        self._pending_begin = self._pending_end = 0
        self._pending_sum = 0  # what those at place 0 would have in `_lost`, less its number

    def text(self, keys: BlockKeys) -> NumberedText:
        text = self.numbers.text(keys)
        self._make_room()
        return text

    def _make_room(self) -> None:
        num_new = self.numbers.num_numbers - len(self._oldest)
        if num_new:
            self._oldest += NONE * num_new
            self._lost += NONE * num_new

    def leading(self, text: NumberedText, num_blocks: int) -> array[int]:
        if self._pending_end:
            self._settle()
        found: array[int] | None = None
        oldest = self._oldest
        for begin, end, shift in text.pieces(0, min(num_blocks, text.num_numbered)):
            first, last = begin + shift, end + shift
            if oldest[first] < 0:
                break
            is_whole = oldest[last - 1] >= 0
            if not is_whole:
                last = self._end_of_held(first, last - 1)
            if found is None:
                found = oldest[first:last]
            else:
                found += oldest[first:last]
            if not is_whole:
                break
        return array("q") if found is None else found

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

    def insert(self, text: NumberedText, first: int, last: int, ids: array[int]) -> None:
        """Some are perhaps known to be so already."""
        if self._pending_end:
            self._settle()
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

    def forget(self, text: NumberedText, first: int, last: int, ids: array[int]) -> None:
        """The content of its blocks from place `last` - 1 down to `first` is evicted: `ids[place]` holds it no more.
        The next oldest with the same content serve from now on.

        Decodes evict a run block by block, and nobody asks in between: what is adjacent is noted at once, later.
        """
        count = self._num_losses + last - 1
        self._num_losses += last - first
        if self._pending_end:
            if self._pending_ids is ids and self._pending_begin == last and self._pending_sum == count:
                self._pending_begin = first
                return
            self._settle()
        self._pending_text, self._pending_ids, self._pending_begin, self._pending_end = text, ids, first, last
        self._pending_sum = count

    def _settle(self) -> None:
        ids, count, one = self._pending_ids, self._pending_sum, self._one
        for begin, end, shift in self._pending_text.pieces(self._pending_begin, self._pending_end):
            first, last = begin + shift, end + shift
            one[0] = count + shift
            self._lost[first:last] = one * (end - begin)
            if self._younger and self._has_younger(first, last):
                for place in range(begin, end):
                    self._remove(place + shift, ids[place])
            else:
                self._oldest[first:last] = NONE * (end - begin)
        self._pending_text, self._pending_ids, self._pending_end = NO_TEXT, _NO_IDS, 0

    def losses(self, text: NumberedText, first: int, last: int) -> list[int]:
        if self._pending_end:
            self._settle()
        found: list[int] = []
        oldest, lost, loss = self._oldest, self._lost, -1
        for begin, end, shift in text.pieces(first, min(last, text.num_numbered)):
            for number in range(begin + shift, end + shift):
                if oldest[number] < 0:
                    loss = lost[number]
                    if loss >= 0:
                        loss -= number
                if loss < 0:
                    return found
                found.append(loss)
        return found

    def holds(self, number: int, block_id: int) -> bool:
        if self._pending_end:
            self._settle()
        return self._oldest[number] == block_id or block_id in self._younger.get(number, ())

    def remove(self, number: int, block_id: int) -> None:
        """This block never had the content, which is lost by no eviction."""
        if self._pending_end:
            self._settle()
        self._remove(number, block_id)

    def _has_younger(self, first: int, last: int) -> bool:
        """Does any of these consecutive contents stand in several blocks? O(the lesser of those, and these)."""
        younger = self._younger
        if len(younger) < last - first:
            return any(first <= number < last for number in younger)
        return any(number in younger for number in range(first, last))

    def _remove(self, number: int, block_id: int) -> None:
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
