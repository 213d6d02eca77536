"""A line of ids that come and go many at a time."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_FIRST_ROOM: Final = 256


class IdLine:
    """First in, first out. O(1) an id, amortised, and an array operation a call."""

    __slots__ = ("_begin", "_end", "_ids", "_room", "_view")

    def __init__(self) -> None:
        self._begin = self._end = 0
        self._room = _FIRST_ROOM
        self._ids: Ints = np.empty(_FIRST_ROOM, dtype=np.int64)
        self._view = self._ids.data  # where one is looked up

    @property
    def length(self) -> int:
        return self._end - self._begin

    def append(self, ids: Ints) -> None:
        end = self._end + len(ids)
        if end > self._room:
            self._make_room(len(ids))
            end = self._end + len(ids)
        self._ids[self._end : end] = ids
        self._end = end

    def append_one(self, item: int) -> None:
        if self._end == self._room:
            self._make_room(1)
        self._view[self._end] = item
        self._end += 1

    def first(self, num_ids: int) -> Ints:
        """The oldest so many, or all: good until the line is changed by anything but `drop`."""
        return self._ids[self._begin : min(self._begin + num_ids, self._end)]

    def drop(self, num_ids: int) -> None:
        """The oldest so many, which are in line, leave."""
        self._begin += num_ids

    def pop(self) -> int:
        """Removes and returns the oldest, which there is."""
        item: int = self._view[self._begin]
        self._begin += 1
        return item

    def at(self, place: int) -> int:
        """Who stands at this place, counted from the oldest."""
        item: int = self._view[self._begin + place]
        return item

    def remove(self, ids: array[int]) -> None:
        """As many of these as are in line leave. O(length)."""
        waiting = self.first(self.length)
        kept = waiting[~np.isin(waiting, ids)]
        self._end = self._begin + len(kept)
        self._ids[self._begin : self._end] = kept

    def _make_room(self, num_ids: int) -> None:
        """To the front of the memory there is, if half of it is then left; else to one twice as large."""
        waiting, num_waiting = self.first(self.length), self.length
        if num_waiting + num_ids > self._room // 2:
            self._room = 2 * (num_waiting + num_ids)
            self._ids = np.empty(self._room, dtype=np.int64)
            self._view = self._ids.data
        self._ids[:num_waiting] = waiting
        self._begin, self._end = 0, num_waiting
