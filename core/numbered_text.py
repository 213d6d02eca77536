"""Texts by numbers: the contents that a pool meets, numbered densely, so that what is known of each is a place of an
array.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence

from core.content import BlockKeys
from core.interfaces import BlockKey

NONE = array("q", (-1,))
"""Nothing is known: as many as there are to be, of a column that begins or is cleared."""


class NumberedText:
    """The content of one sequence's first full blocks, as pieces whose numbers are consecutive.

    Piece n goes from place `bounds[n]` up to `bounds[n + 1]`; its blocks have the numbers of their places plus
    `shifts[n]`. The first `num_shared` blocks may be content of others, too.
    """

    __slots__ = ("bounds", "num_shared", "shifts")

    def __init__(self, num_shared: int, bounds: list[int], shifts: list[int]) -> None:
        self.num_shared = num_shared
        self.bounds = bounds
        self.shifts = shifts

    def go_on(self, place: int, shift: int) -> None:
        """What was its end is where a further piece begins, unless that piece only goes on with the last one's numbers.
        The text ends at `place` until `bounds[-1]` is set.
        """
        if not self.shifts or self.shifts[-1] != shift:
            self.bounds[-1] = place
            self.bounds.append(place)
            self.shifts.append(shift)

    @property
    def num_numbered(self) -> int:
        """Blocks that have numbers: the shared ones, and those of its own text that its sequence may ask for."""
        return self.bounds[-1]

    def number(self, place: int) -> int:
        """Of a block that has one. O(log pieces)."""
        return place + self.shifts[bisect_right(self.bounds, place) - 1]

    def pieces(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """The blocks from `first` up to, not including, `last`, which have numbers: places [begin, end), and what is
        to be added for numbers. O(log pieces), and what is returned.
        """
        bounds, shifts = self.bounds, self.shifts
        if first >= last:
            return []
        if first >= bounds[-2]:
            return [(first, last, shifts[-1])]
        found = []
        piece = bisect_right(bounds, first) - 1 if first else 0
        while first < last:
            end = min(bounds[piece + 1], last)
            found.append((first, end, shifts[piece]))
            first = end
            piece += 1
        return found


NO_TEXT = NumberedText(0, [0], [])


class _Piece:
    """Names that were first met one after another, in one text, and the number of the first block of the first."""

    __slots__ = ("names", "number")

    def __init__(self, names: Sequence[BlockKey], number: int) -> None:
        self.names = names
        self.number = number

    def num_leading(self, names: Sequence[BlockKey], first: int) -> int:
        """So many from place `first` on, of which the first is this piece's, are the beginning of the piece.

        O(log names): where one differs, all after it do.
        """
        own = self.names
        alike, other = 1, min(len(own), len(names) - first) + 1
        if names[first + other - 2] == own[other - 2]:
            return other - 1
        while other - alike > 1:
            middle = (alike + other) // 2
            if names[first + middle - 1] == own[middle - 1]:
                alike = middle
            else:
                other = middle
        return alike


class ContentNumbers:
    """Gives numbers in the order in which contents are first met. What a text shares with an earlier one are then
    pieces of that one, few as a rule: the turns of a conversation.

    A name stands for its blocks and for all before them, so it always follows the same name, and what follows a new one
    is new. O(pieces log names) a text, and its new names; a reference for each name that was ever met, and 8 bytes a
    block in every column.
    """

    def __init__(self, first_number: int = 0) -> None:
        self.num_numbers = first_number  # the next that is given
        # By their first names, by the blocks that a name stands for.
        self._pieces: dict[int, dict[BlockKey, _Piece]] = {}

    def text(self, keys: BlockKeys) -> NumberedText:
        """The blocks that others may have. Equal keys have equal numbers."""
        num_shared = keys.num_shared
        if not num_shared:
            return NumberedText(0, [0], [])
        names, num_blocks = keys.names(), keys.blocks_a_name
        text, num_known = self._known(names, num_blocks)
        if num_known < len(names):
            new, number, place = names[num_known:], self.num_numbers, num_known * num_blocks
            self._pieces.setdefault(num_blocks, {})[new[0]] = _Piece(new, number)
            self.num_numbers = number + len(new) * num_blocks
            text.go_on(place, number - place)
        text.num_shared = text.bounds[-1] = num_shared
        return text

    def known(self, keys: BlockKeys, num_blocks: int) -> NumberedText:
        """The longest beginning of its first `num_blocks` blocks that was met before. Changes nothing."""
        num_blocks = min(num_blocks, keys.num_shared)
        if num_blocks <= 0:
            return NO_TEXT
        text, _ = self._known(keys.names()[: -(-num_blocks // keys.blocks_a_name)], keys.blocks_a_name)
        text.num_shared = text.bounds[-1] = min(text.bounds[-1], num_blocks)
        return text

    def _known(self, names: Sequence[BlockKey], num_blocks: int) -> tuple[NumberedText, int]:
        """The beginning that was met before, and its number of names, each of so many blocks."""
        text, place, num_names = NumberedText(0, [0], []), 0, len(names)
        pieces = self._pieces.get(num_blocks)
        while pieces is not None and place < num_names:
            piece = pieces.get(names[place])
            if piece is None:
                break
            first = place * num_blocks
            text.go_on(first, piece.number - first)
            place += piece.num_leading(names, place)
            text.bounds[-1] = place * num_blocks
        return text, place

    def extend(self, text: NumberedText, num_blocks: int) -> None:
        """Numbers for all of its first `num_blocks` blocks. Those that had none are content of nobody else."""
        num_before = text.num_numbered
        if num_blocks > num_before:
            text.bounds.append(num_blocks)
            text.shifts.append(self.num_numbers - num_before)
            self.num_numbers += num_blocks - num_before
