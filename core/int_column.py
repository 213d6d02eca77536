"""A growing column of whole numbers."""

from __future__ import annotations

import struct
from array import array
from typing import Final

MOST_NEW: Final = 1 << 10
"""So many wait in a list: of many replicas in turns, each finds its own out of the processor's memory again."""


class IntColumn:
    """Numbers in order, packed but for the newest: a list takes one in a tenth of an array's time, and 36 bytes.

    Whoever adds to it packs it when there are MOST_NEW.
    """

    __slots__ = ("_packed", "new")

    def __init__(self) -> None:
        self._packed = array("q")
        self.new: list[int] = []  # the end of the column; whoever has a number adds it here

    def __len__(self) -> int:
        return len(self._packed) + len(self.new)

    def packed(self) -> array[int]:
        """All of it. For reading: numbers come in by `new`."""
        if self.new:
            self._packed.frombytes(struct.pack(f"{len(self.new)}q", *self.new))
            self.new.clear()
        return self._packed

    def pop_first(self, num: int) -> IntColumn:
        """Takes so many out of it, as a column of their own."""
        packed, part = self.packed(), IntColumn()
        part._packed = packed[:num]
        del packed[:num]
        return part
