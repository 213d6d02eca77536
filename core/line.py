"""A line: first in, first out, but some leave early."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)
_FEW_GONE = 64


class Line(Generic[ItemT]):
    """An item that leaves early keeps its place, which is skipped when it comes up. O(1) each, amortised.

    It may join again; no item is in line twice.
    """

    def __init__(self) -> None:
        self.length = 0
        self._next: list[ItemT] = []  # the oldest, of whom the last comes first
        self._joined: list[ItemT] = []  # the others, oldest first
        self._gone: dict[ItemT, int] = {}  # how many places of each are of no one
        self._num_gone = 0

    def append(self, item: ItemT) -> None:
        self._joined.append(item)
        self.length += 1

    def pop(self) -> ItemT:
        """Removes and returns the oldest. Raises IndexError where there is none."""
        while True:
            if not self._next:
                self._next, self._joined = self._joined, self._next
                self._next.reverse()
            item = self._next.pop()
            if not self._num_gone or not self._has_left(item):
                self.length -= 1
                return item

    def put_back(self, item: ItemT) -> None:
        """As if the oldest, which was just removed, had not been."""
        self._next.append(item)
        self.length += 1

    def discard(self, item: ItemT) -> None:
        """This one, which is in line, leaves."""
        self._gone[item] = self._gone.get(item, 0) + 1
        self._num_gone += 1
        self.length -= 1
        if self._num_gone > self.length + _FEW_GONE:
            self._next = self.items()
            self._next.reverse()
            self._joined = []
            self._gone = {}
            self._num_gone = 0

    def _has_left(self, item: ItemT) -> bool:
        """Places that an item left come before the one that it has."""
        num_left = self._gone.get(item, 0)
        if num_left == 0:
            return False
        if num_left == 1:
            del self._gone[item]
        else:
            self._gone[item] = num_left - 1
        self._num_gone -= 1
        return True

    def items(self) -> list[ItemT]:
        """All in line, the oldest first. O(n)."""
        places = [*reversed(self._next), *self._joined]
        if not self._num_gone:
            return places
        num_left = dict(self._gone)
        staying: list[ItemT] = []
        for item in places:
            if num_left.get(item, 0):
                num_left[item] -= 1
            else:
                staying.append(item)
        return staying
