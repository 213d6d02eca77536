"""Free runs of a pool as holes between what is placed: first fit and best fit, merged on release, compacted on wish."""

from __future__ import annotations

from bisect import bisect_left, insort

from core.interfaces import Run


class FirstFit:
    """The lowest hole that is long enough (Knuth, TAOCP 2.5). O(holes) a placement, O(log holes) a release."""

    def __init__(self, num_blocks: int) -> None:
        self.num_free = self.longest = num_blocks
        self._holes = [Run(0, num_blocks)]  # by start; no two touch

    @property
    def free_runs(self) -> list[Run]:
        return list(self._holes)

    def can_place(self, num_blocks: int) -> bool:
        return any(hole.num_blocks >= num_blocks for hole in self._holes)

    def place(self, num_blocks: int) -> Run | None:
        """Takes exactly `num_blocks` from the beginning of the hole that is chosen."""
        index = self._choose(num_blocks)
        if index is None:
            return None
        start, length = self._holes.pop(index)
        if length > num_blocks:
            self._holes.insert(index, Run(start + num_blocks, length - num_blocks))
        self.num_free -= num_blocks
        return Run(start, num_blocks)

    def _choose(self, num_blocks: int) -> int | None:
        return next((i for i, hole in enumerate(self._holes) if hole.num_blocks >= num_blocks), None)

    def free(self, run: Run) -> None:
        """Merges with the holes that touch it."""
        self.num_free += run.num_blocks
        start, end = run.start, run.start + run.num_blocks
        index = bisect_left(self._holes, run)
        if index < len(self._holes) and self._holes[index].start == end:
            end += self._holes.pop(index).num_blocks
        if index and sum(self._holes[index - 1]) == start:
            start = self._holes.pop(index - 1).start
        insort(self._holes, Run(start, end - start))

    def compact(self, num_blocks: int, placed: list[Run]) -> list[tuple[Run, int]]:
        """Moves the fewest blocks that make a hole of `num_blocks`: some neighbouring holes become one.

        `placed` are all runs in use. Returns (run, new start) of those between these holes, lowest first; they slide
        down. There must be `num_blocks` free in all. O(runs).
        """
        first, last = self._cheapest_holes(num_blocks)
        place, end = self._holes[first].start, sum(self._holes[last])
        moves = []
        for run in sorted(run for run in placed if place < run.start < end):
            moves.append((run, place))
            place += run.num_blocks
        self._holes[first : last + 1] = [Run(place, end - place)]
        return moves

    def _cheapest_holes(self, num_blocks: int) -> tuple[int, int]:
        """First and last of the consecutive holes that have `num_blocks` with the fewest blocks between them."""
        holes = self._holes
        best, best_cost, first, free = (0, len(holes) - 1), self.num_free + holes[-1].start + 1, 0, 0
        for last, hole in enumerate(holes):
            free += hole.num_blocks
            while free - holes[first].num_blocks >= num_blocks:
                free -= holes[first].num_blocks
                first += 1
            cost = sum(hole) - holes[first].start - free
            if free >= num_blocks and cost < best_cost:
                best, best_cost = (first, last), cost
        return best


class BestFit(FirstFit):
    """The shortest hole that is long enough, the lowest of equals."""

    def _choose(self, num_blocks: int) -> int | None:
        fitting = [(hole.num_blocks, i) for i, hole in enumerate(self._holes) if hole.num_blocks >= num_blocks]
        return min(fitting)[1] if fitting else None
