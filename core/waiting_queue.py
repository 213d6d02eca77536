"""The waiting queue: ordered by the queue policy's key, with O(log n) joins and lazy removal."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from core.errors import InputError
from core.interfaces import QueuePolicy, SchedulerView
from core.request import Request


class WaitingQueue:
    """Requests that wait, least key first. `queue_position` counts up at the back and down at the front: fcfs order.

    `is_reranked`: the policy has the last word in each step on who comes next (`in_turn`).
    """

    def __init__(self, policy: QueuePolicy, view: SchedulerView) -> None:
        self.is_reranked = type(policy).rerank is not QueuePolicy.rerank
        self._policy = policy
        kind = type(policy)
        self._tells_joins = kind.on_join is not QueuePolicy.on_join
        self._tells_admissions = kind.on_admit is not QueuePolicy.on_admit
        self._tells_leaves = kind.on_leave is not QueuePolicy.on_leave
        self._view = view
        self._heap: list[tuple[Any, int, Request]] = []
        self.entries: dict[Request, int] = {}  # request -> number of its live heap entry
        self._num_entries = 0
        self._back = 0
        self._front = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Request]:
        """By key. O(n log n): for tests and parity."""
        return (
            request
            for _, number, request in sorted(self._heap, key=lambda e: e[:2])
            if self.entries.get(request) == number
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
        self.entries[request] = self._num_entries
        heapq.heappush(self._heap, (self._policy.key(request), self._num_entries, request))
        if self._tells_joins:
            self._policy.on_join(request, self._view)

    @property
    def head(self) -> Request:
        """The one of least key."""
        while True:
            _, number, request = self._heap[0]
            if self.entries.get(request) == number:
                return request
            heapq.heappop(self._heap)

    def first(self, num_requests: int) -> list[Request]:
        """So many of the waiting (or all), by key. O(num_requests log num_requests), and nothing moves."""
        found: list[Request] = []
        frontier = [(*self._heap[0][:2], 0)] if self._heap else []
        while frontier and len(found) < num_requests:
            _, number, index = heapq.heappop(frontier)
            request = self._heap[index][2]
            if self.entries.get(request) == number:
                found.append(request)
            for child in range(2 * index + 1, min(2 * index + 3, len(self._heap))):
                heapq.heappush(frontier, (*self._heap[child][:2], child))
        return found

    def in_turn(self) -> Iterator[Request]:
        """Whom to try in this step. The next is asked for once the one before waits no more.

        Raises InputError for a queue policy that names somebody who does not wait.
        """
        if self.is_reranked:
            for request in self._policy.rerank(self.first(self._policy.window), self._view):
                if request not in self.entries:
                    name, who = type(self._policy).__name__, request.request_id
                    raise InputError(f"queue: {name}.rerank named request {who}, which does not wait")
                yield request
        while self.entries:
            yield self.head

    def admit(self, request: Request) -> None:
        """It waits no more because it runs."""
        if self._tells_admissions:
            self._policy.on_admit(request, self._view)
        self.remove(request)

    def precedes(self, request: Request, other: Request) -> bool:
        """Would it be served before the other, were they to wait both?"""
        return bool(self._policy.key(request) < self._policy.key(other))

    def remove(self, request: Request) -> None:
        del self.entries[request]
        if len(self._heap) > 2 * len(self.entries) + 64:
            self._heap = [entry for entry in self._heap if self.entries.get(entry[2]) == entry[1]]
            heapq.heapify(self._heap)
        if self._tells_leaves:
            self._policy.on_leave(request, self._view)
