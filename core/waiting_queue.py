"""The waiting queue: ordered by the queue policy's key, with O(log n) joins and lazy removal."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from core.interfaces import QueuePolicy
from core.request import Request


class WaitingQueue:
    """Requests that wait, least key first. `queue_position` counts up at the back and down at the front: fcfs order."""

    def __init__(self, policy: QueuePolicy) -> None:
        self._policy = policy
        self._heap: list[tuple[Any, int, Request]] = []
        self._entry: dict[Request, int] = {}  # request -> number of its live heap entry
        self._num_entries = 0
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return len(self._entry)

    def __iter__(self) -> Iterator[Request]:
        """In queue order. O(n log n): for tests and parity."""
        return (
            request
            for _, number, request in sorted(self._heap, key=lambda e: e[:2])
            if self._entry.get(request) == number
        )

    def append(self, request: Request) -> None:
        self._back += 1
        request.queue_position = self._back
        self._push(request)

    def prepend(self, request: Request) -> None:
        self._front -= 1
        request.queue_position = self._front
        self._push(request)

    def _push(self, request: Request) -> None:
        self._num_entries += 1
        self._entry[request] = self._num_entries
        heapq.heappush(self._heap, (self._policy.key(request), self._num_entries, request))

    @property
    def head(self) -> Request:
        heap = self._heap
        while self._entry.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        return heap[0][2]

    def remove(self, request: Request) -> None:
        del self._entry[request]
