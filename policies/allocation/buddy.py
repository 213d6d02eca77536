"""The buddy system: runs are powers of two, split in halves and merged again (Knowlton 1965; Knuth, TAOCP 2.5)."""

from __future__ import annotations

from bisect import bisect_left, insort

from core.interfaces import Run


class Buddy:
    """A run of 2^k blocks starts at a multiple of 2^k; its buddy is the other half of the run of 2^(k+1) around it.

    A pool whose size is no power of two begins as the largest such runs that fill it: 983 blocks as 512, 256, 128, 64,
    16, 4, 2 and 1. The lowest free run of the smallest order that serves is taken. O(log pool) splits or merges.
    """

    def __init__(self, num_blocks: int) -> None:
        num_orders = num_blocks.bit_length()
        self.num_free = num_blocks
        self.longest = 1 << (num_orders - 1)
        self._free: list[list[int]] = [[] for _ in range(num_orders)]  # by order: starts, ascending
        start = 0
        for order in range(num_orders - 1, -1, -1):
            if num_blocks >> order & 1:
                self._free[order].append(start)
                start += 1 << order

    @property
    def free_runs(self) -> list[Run]:
        return sorted(Run(start, 1 << order) for order, starts in enumerate(self._free) for start in starts)

    def can_place(self, num_blocks: int) -> bool:
        return any(self._free[_order_of(num_blocks) :])

    def place(self, num_blocks: int) -> Run | None:
        """Takes a run of the next power of two from `num_blocks` on."""
        order = _order_of(num_blocks)
        found = next((k for k in range(order, len(self._free)) if self._free[k]), None)
        if found is None:
            return None
        start = self._free[found].pop(0)
        for half in range(found - 1, order - 1, -1):
            insort(self._free[half], start + (1 << half))
        self.num_free -= 1 << order
        return Run(start, 1 << order)

    def free(self, run: Run) -> None:
        """Merges with its buddy for as long as that is free, too."""
        self.num_free += run.num_blocks
        start, order = run.start, _order_of(run.num_blocks)
        while order < len(self._free) and self._take_out(order, start ^ (1 << order)):
            start &= ~(1 << order)
            order += 1
        insort(self._free[order], start)

    def _take_out(self, order: int, start: int) -> bool:
        starts = self._free[order]
        index = bisect_left(starts, start)
        is_free = index < len(starts) and starts[index] == start
        if is_free:
            del starts[index]
        return is_free


def _order_of(num_blocks: int) -> int:
    """The least k with 2^k >= num_blocks."""
    return (num_blocks - 1).bit_length()
