"""Candidates in order of a rank that may change: a heap whose outdated entries are skipped when they surface."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)


class CandidateHeap(Generic[ItemT]):
    """The least rank comes first; of equal ranks the one that was put in earlier. O(log n) each, amortised."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, ItemT]] = []
        self._entry: dict[ItemT, int] = {}  # item -> number of its live heap entry; others are outdated
        self._num_put = 0

    def __len__(self) -> int:
        return len(self._entry)

    def __contains__(self, item: ItemT) -> bool:
        return item in self._entry

    def put(self, item: ItemT, rank: Any) -> None:
        """Adds the item, or gives it a new rank."""
        self._num_put += 1
        self._entry[item] = self._num_put
        heapq.heappush(self._heap, (rank, self._num_put, item))
        if len(self._heap) > 2 * len(self._entry) + 64:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapq.heapify(self._heap)

    def discard(self, item: ItemT) -> None:
        """The item is no candidate any more, if it was one."""
        self._entry.pop(item, None)

    def pop(self) -> ItemT:
        """Removes and returns the first. Raises IndexError where there is none."""
        while True:
            entry = heapq.heappop(self._heap)
            if self._is_live(entry):
                del self._entry[entry[2]]
                return entry[2]

    def first_rank(self) -> Any:
        """The rank of the first. Raises IndexError where there is none."""
        while not self._is_live(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0]

    def ranked(self) -> list[tuple[Any, int, ItemT]]:
        """Rank, number and item of each candidate, first to last. O(n log n): for tests and parity only."""
        return sorted((entry for entry in self._heap if self._is_live(entry)), key=lambda entry: entry[:2])

    def _is_live(self, entry: tuple[Any, int, ItemT]) -> bool:
        return self._entry.get(entry[2]) == entry[1]
