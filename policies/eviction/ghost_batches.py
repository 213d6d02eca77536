"""The memory of what is gone, many at a time."""

from __future__ import annotations

from typing import Final

import numpy as np

from core.batch_eviction import Ints, largest
from core.id_line import IdLine

_FIRST_ROOM: Final = 1024
_NOTHING: Final = 0


class GhostBatches:
    """As `policies.eviction.shares.Ghosts`, of contents by their numbers; 0 is none.

    Places in line are counted from 1 and never given twice: whoever stands before the line's first is forgotten, and
    whoever leaves early leaves a gap. 8 bytes for each content that was ever met, 9 for each in line.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._length = 0
        self._line = IdLine()
        self._is_there = bytearray()  # of each in line: 0 is a gap
        self._num_past = 0  # places before the line's first
        self._room = _FIRST_ROOM
        # By number: the place that it was given last; 0: none, as for the last number there is room for.
        self._place_of: Ints = np.zeros(_FIRST_ROOM, dtype=np.int64)
        self._place = self._place_of.data  # where one is looked up

    def _reach(self, number: int) -> None:
        if number >= self._room - 1:
            place_of = np.zeros(2 * number + 2, dtype=np.int64)
            place_of[: self._room] = self._place_of
            self._place_of, self._place, self._room = place_of, place_of.data, 2 * number + 2

    def __contains__(self, number: int) -> bool:
        return number < self._room and self._place[number] > self._num_past

    def _places(self, numbers: Ints) -> Ints:
        """Those past are of nobody."""
        return self._place_of.take(numbers, mode="clip")

    def pick(self, numbers: Ints) -> Ints | None:
        """Which of these, by their places, are among them; they leave. None: none is."""
        places = self._places(numbers)
        if largest(places) <= self._num_past:
            return None
        picked: Ints = (places > self._num_past).nonzero()[0]
        np.frombuffer(self._is_there, dtype=np.int8)[places[picked] - (self._num_past + 1)] = 0
        self._place_of[numbers[picked]] = 0
        self._length -= len(picked)
        return picked

    def add(self, numbers: Ints, incoming: Ints | None) -> None:
        """One after the other: newest from now. `incoming`, for which each had to go, is about to leave: it neither
        counts nor falls out.
        """
        self._reach(largest(numbers))
        if not self._add_all(numbers, incoming):
            come = [_NOTHING] * len(numbers) if incoming is None else incoming.tolist()
            for number, coming in zip(numbers.tolist(), come, strict=True):
                self.add_one(number, coming)

    def add_one(self, number: int, incoming: int = _NOTHING) -> None:
        self._reach(number)
        place = self._place[number] - self._num_past
        if place > 0:
            self._is_there[place - 1] = 0
        else:
            self._length += 1
        self._line.append_one(number)
        self._is_there.append(1)
        self._place[number] = self._num_past + self._line.length
        if self._length > self._most and self._length - (incoming in self) > self._most:
            self._forget_oldest(incoming)
            self._length -= 1

    def _forget_oldest(self, spared: int) -> None:
        """But for this one."""
        first = self._is_there.find(1)
        if self._line.at(first) != spared:
            self._pass(first + 1)
            return
        second = self._is_there.find(1, first + 1)
        self._is_there[second] = 0
        self._place[self._line.at(second)] = 0

    def _pass(self, num_places: int) -> None:
        """Whoever stands in these first places of the line is forgotten."""
        self._line.drop(num_places)
        del self._is_there[:num_places]
        self._num_past += num_places

    def _num_places_of(self, num_oldest: int) -> int:
        """How many places in line hold the oldest so many, which there are."""
        end = 0
        while num_oldest:
            begin, end = end, end + num_oldest
            num_oldest -= self._is_there.count(1, begin, end)
        return end

    def _add_all(self, numbers: Ints, incoming: Ints | None) -> bool:
        """All of them at once; False, with nothing changed, where the order in which they come and go tells."""
        place_of, num_past, num = self._place_of, self._num_past, len(numbers)
        if largest(place_of[numbers]) > num_past:
            return False
        first = num_past + self._line.length + 1
        places = np.arange(first, first + num)
        place_of[numbers] = places
        num_forgotten = self._num_to_forget(num, first, incoming)
        if num_forgotten < 0 or np.count_nonzero(place_of[numbers] != places):
            place_of[numbers] = 0
            return False
        self._line.append(numbers)
        self._is_there += b"\1" * num
        self._pass(self._num_places_of(num_forgotten))
        self._length += num - num_forgotten
        return True

    def _num_to_forget(self, num_new: int, first_new: int, incoming: Ints | None) -> int:
        """For so many more, who stand at this place and after it; -1: where the order tells."""
        num_beyond = self._length + num_new - self._most
        oldest_coming = first_new
        if incoming is not None:
            coming = self._places(incoming)
            newest_coming = largest(coming)
            if newest_coming >= first_new:
                return -1
            if newest_coming > self._num_past:
                is_ghost = coming > self._num_past
                oldest_coming = int(coming[is_ghost].min())
                # The first for which something has to go that is about to come back makes room for one more.
                if self._length <= self._most and np.count_nonzero(is_ghost[self._most - self._length :]):
                    num_beyond -= 1
        num_forgotten = min(num_new, max(0, num_beyond))
        if num_forgotten > self._length or oldest_coming <= self._num_past + self._num_places_of(num_forgotten):
            return -1
        return num_forgotten
