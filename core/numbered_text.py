"""Texts by numbers: the contents that a pool meets, numbered densely, so that what is known of each is a place of an
array.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

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


class ContentNumbers:
    """Gives numbers in the order in which contents are first met. What a text shares with an earlier one are then
    pieces of that one, few as a rule: the turns of a conversation.

    O(1) a name (`BlockKeys.names`); about 100 bytes for each that was ever met, and 8 a block in every column.
    """

    def __init__(self, first_number: int = 0) -> None:
        self.num_numbers = first_number  # the next that is given
        self._first_numbers: dict[int, dict[BlockKey, int]] = {}  # by the blocks that a name stands for

    def text(self, keys: BlockKeys) -> NumberedText:
        """The blocks that others may have. Equal keys have equal numbers."""
        num_shared = keys.num_shared
        bounds: list[int] = []
        shifts: list[int] = []
        if num_shared:
            num_blocks, place, following, num_numbers = keys.blocks_a_name, 0, -1, self.num_numbers
            first_numbers = self._first_numbers.setdefault(num_blocks, {})
            for name in keys.names():
                number = first_numbers.get(name, -1)
                if number < 0:
                    number = first_numbers[name] = num_numbers
                    num_numbers += num_blocks
                if number != following:
                    bounds.append(place)
                    shifts.append(number - place)
                following = number + num_blocks
                place += num_blocks
            self.num_numbers = num_numbers
        bounds.append(num_shared)
        return NumberedText(num_shared, bounds, shifts)

    def known(self, keys: BlockKeys, num_blocks: int) -> list[int]:
        """The first number of each of its leading names, of the first `num_blocks` blocks, that were met before.
        Changes nothing.
        """
        first_numbers = self._first_numbers.get(keys.blocks_a_name, {})
        known: list[int] = []
        for name in keys.names()[: -(-num_blocks // keys.blocks_a_name)]:
            number = first_numbers.get(name)
            if number is None:
                break
            known.append(number)
        return known

    def extend(self, text: NumberedText, num_blocks: int) -> None:
        """Numbers for all of its first `num_blocks` blocks. Those that had none are content of nobody else."""
        num_before = text.num_numbered
        if num_blocks > num_before:
            text.bounds.append(num_blocks)
            text.shifts.append(self.num_numbers - num_before)
            self.num_numbers += num_blocks - num_before
