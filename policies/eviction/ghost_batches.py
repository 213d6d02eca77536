"""The memory of what is gone, many at a time."""

from __future__ import annotations

import numpy as np

from core.batch_eviction import Ints
from core.id_line import IdLine

_FIRST_ROOM = 1024
_MORE_THAN_ENOUGH = 64
_NOTHING = 0


class GhostBatches:
    """As `policies.eviction.shares.Ghosts`, of contents by their numbers; 0 is none.

    Whatever leaves early keeps its place in line, which is no longer the one that is noted for it. 16 bytes for each
    content that was ever met.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = 0
        self._line = IdLine()
        self._num_past = 0  # places before the line's first
        self._room = _FIRST_ROOM
        self._place_of: Ints = np.zeros(_FIRST_ROOM, dtype=np.int64)  # by number: its place in line, from 1; 0: none
        self._place = self._place_of.data  # where one is looked up

    def _reach(self, number: int) -> None:
        if number >= self._room:
            place_of = np.zeros(2 * number, dtype=np.int64)
            place_of[: self._room] = self._place_of
            self._place_of, self._place, self._room = place_of, place_of.data, 2 * number

    def __contains__(self, number: int) -> bool:
        return number < self._room and self._place[number] > 0

    def pick(self, numbers: Ints) -> Ints | None:
        """Which of these, by their places, are among them; they leave. None: none is."""
        if not self._length:
            return None
        self._reach(int(np.maximum.reduce(numbers)))
        picked: Ints = self._place_of[numbers].nonzero()[0]
        if not len(picked):
            return None
        self._place_of[numbers[picked]] = 0
        self._length -= len(picked)
        return picked

    def add(self, numbers: Ints, incoming: Ints | None) -> None:
        """One after the other: newest from now. `incoming`, for which each had to go, is about to leave: it neither
        counts nor falls out.
        """
        self._reach(int(np.maximum.reduce(numbers)))
        if incoming is not None:
            self._reach(int(np.maximum.reduce(incoming)))
        if not self._add_all(numbers, incoming):
            come = [_NOTHING] * len(numbers) if incoming is None else incoming.tolist()
            for number, coming in zip(numbers.tolist(), come, strict=True):
                self.add_one(number, coming)

    def add_one(self, number: int, incoming: int = _NOTHING) -> None:
        self._reach(max(number, incoming))
        if not self._place[number]:
            self._length += 1
        self._line.append_one(number)
        self._place[number] = self._num_past + self._line.length
        if self._length > self._most and self._length - bool(self._place[incoming]) > self._most:
            self._forget_oldest(incoming)
            self._length -= 1

    def _forget_oldest(self, spared: int) -> None:
        """But for this one."""
        line, place = self._line, self._place
        offset = 0
        while True:
            number = line.at(offset)
            is_there = place[number] == self._num_past + offset + 1
            if is_there and number != spared:
                place[number] = 0
                return
            if offset or is_there:
                offset += 1
            else:
                line.drop(1)
                self._num_past += 1

    def _add_all(self, numbers: Ints, incoming: Ints | None) -> bool:
        """All of them at once; False, with nothing changed, where the order in which they come and go tells."""
        place_of = self._place_of
        if np.count_nonzero(place_of[numbers]):
            return False
        before = None if incoming is None else place_of[incoming]
        places = np.arange(len(numbers)) + (self._num_past + self._line.length + 1)
        place_of[numbers] = places
        num_beyond = self._length + len(numbers) - self._most
        is_plain = not np.count_nonzero(place_of[numbers] != places)
        if is_plain and before is not None and incoming is not None:
            is_plain = not np.count_nonzero(place_of[incoming] != before)
            # The first for which something has to go that is about to come back makes room for one more.
            if self._length <= self._most and np.count_nonzero(before[max(0, self._most - self._length) :]):
                num_beyond -= 1
        if is_plain:
            self._line.append(numbers)
            num_forgotten = min(len(numbers), max(0, num_beyond))
            last = self._oldest(num_forgotten) if num_forgotten else 0
            stay = None if before is None else before[before > 0]
            if stay is None or not len(stay) or stay.min() > self._num_past + last:
                self._forget(last)
                self._length += len(numbers) - num_forgotten
                return True
            self._line.take_back(len(numbers))
        place_of[numbers] = 0
        return False

    def _oldest(self, num: int) -> int:
        """How many places in line hold the oldest so many."""
        start = 0
        while True:
            seen = self._line.first(start + 2 * num + _MORE_THAN_ENOUGH)[start:]
            are_there = (self._place_of[seen] == np.arange(len(seen)) + (self._num_past + start + 1)).nonzero()[0]
            if len(are_there) >= num:
                return start + int(are_there[num - 1]) + 1
            num -= len(are_there)
            start += len(seen)

    def _forget(self, num_places: int) -> None:
        """Whoever stands in these first places of the line."""
        seen = self._line.first(num_places)
        are_there = self._place_of[seen] == np.arange(num_places) + (self._num_past + 1)
        self._place_of[seen[are_there]] = 0
        self._line.drop(num_places)
        self._num_past += num_places
