"""A stack of block ids that come and go many at a time."""

from __future__ import annotations

from array import array
from typing import Final

_FIRST_ROOM: Final = 64


class IdStack:
    """Its room never shrinks: an array that loses ids and gets others is copied again and again, all of it."""

    __slots__ = ("_ids", "_room", "length")

    def __init__(self) -> None:
        self.length = 0
        self._room = _FIRST_ROOM
        self._ids = array("q", bytes(8 * _FIRST_ROOM))

    def push(self, ids: array[int]) -> None:
        """The last of them is then on top."""
        end = self.length + len(ids)
        if end > self._room:
            self._make_room(end)
        self._ids[self.length : end] = ids
        self.length = end

    def push_under(self, ids: array[int]) -> None:
        """These lie below all others, the first of them at the bottom."""
        others = self._ids[: self.length]
        self.length = 0
        self.push(ids)
        self.push(others)

    def pop(self, num_ids: int) -> array[int]:
        """So many, of which there are no fewer, from the top down."""
        end = self.length
        begin = self.length = end - num_ids
        ids = self._ids[begin:end]
        ids.reverse()
        return ids

    def _make_room(self, num_ids: int) -> None:
        more = max(num_ids, 2 * self._room) - self._room
        self._ids.frombytes(bytes(8 * more))
        self._room += more

    def items(self) -> array[int]:
        """All, from the bottom up."""
        return self._ids[: self.length]
