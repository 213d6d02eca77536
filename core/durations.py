"""How long the steps of a span take: in closed form where each takes just so much longer than the one before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import overload

from core.progression import even_num_begun, even_total_ps


class EvenDurations(Sequence[int]):
    """`num_steps` durations that begin with `first_ps` and grow by `growth_ps` (at least 0) a step. O(1) in all."""

    __slots__ = ("_num_steps", "first_ps", "growth_ps")

    def __init__(self, first_ps: int, growth_ps: int, num_steps: int) -> None:
        self.first_ps = first_ps
        self.growth_ps = growth_ps
        self._num_steps = num_steps

    def __len__(self) -> int:
        return self._num_steps

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        if isinstance(place, slice):
            first, last, stride = place.indices(self._num_steps)
            if stride != 1:
                return [self[index] for index in range(first, last, stride)]
            return EvenDurations(self.first_ps + self.growth_ps * first, self.growth_ps, max(last - first, 0))
        index = place + self._num_steps if place < 0 else place
        if not 0 <= index < self._num_steps:
            raise IndexError(f"step {place} of {self._num_steps}")
        return self.first_ps + self.growth_ps * index


def total_ps(durations_ps: Sequence[int]) -> int:
    """How long the whole span takes."""
    if isinstance(durations_ps, EvenDurations):
        return even_total_ps(durations_ps.first_ps, durations_ps.growth_ps, len(durations_ps))
    return sum(durations_ps)


def num_begun(durations_ps: Sequence[int], elapsed_ps: int) -> int:
    """Steps that had begun before `elapsed_ps` had gone by: at least the first, at most all."""
    if isinstance(durations_ps, EvenDurations):
        begun = even_num_begun(durations_ps.first_ps, durations_ps.growth_ps, elapsed_ps)
        return min(begun, len(durations_ps))
    return min(bisect_left(list(accumulate(durations_ps)), elapsed_ps) + 1, len(durations_ps))
