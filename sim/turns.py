"""Whose turn is next, of many replicas."""

from __future__ import annotations

from core.units import NEVER_PS


class Turns:
    """When each has its turn, as a tournament: of every two the earlier goes on, of equals the one with the lower
    number. O(log replicas) a change; who is first is known.
    """

    def __init__(self, num_replicas: int) -> None:
        self._size = 1 << (num_replicas - 1).bit_length()
        self._turn_ps = [NEVER_PS] * self._size
        self._winners = [0] * self._size + list(range(self._size))  # the root is 1; below place n come 2n and 2n + 1

    @property
    def first_ps(self) -> int:
        """The earliest of all turns; NEVER_PS if there is none."""
        return self._turn_ps[self._winners[1]]

    @property
    def first(self) -> int:
        """Whose that is."""
        return self._winners[1]

    def note(self, number: int, turn_ps: int) -> None:
        """This replica has its turn then."""
        turns, winners = self._turn_ps, self._winners
        turns[number] = turn_ps
        place = (number + self._size) >> 1
        while place:
            left, right = winners[2 * place], winners[2 * place + 1]
            winner = left if turns[left] <= turns[right] else right
            if winner != number and winner == winners[place]:
                return  # nothing changes further up
            winners[place] = winner
            place >>= 1
