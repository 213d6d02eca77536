"""What the prompts of a trace will ask for, told in advance: a `Future` for clairvoyant policies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from core.interfaces import BlockKey


class Foresight:
    """Knows which content is referenced by which prompts, in the order in which they are expected, and which of them
    lie in the past. Outputs are not foreseen, nor that a preempted request will look its prompt up again.
    """

    def __init__(self) -> None:
        self._uses: dict[BlockKey, deque[int]] = {}  # numbers of the references to come; those passed leave late
        self._request_of: list[int] = []  # by number of the reference
        self._past: set[int] = set()

    def expect(self, request_id: int, keys: Iterable[BlockKey]) -> None:
        """After all prompts so far comes one that references this content, root to leaf."""
        for key in keys:
            self._uses.setdefault(key, deque()).append(len(self._request_of))
            self._request_of.append(request_id)

    def pass_by(self, request_id: int) -> None:
        """This request was admitted, or ended before it was: what it asks for is no future any more."""
        self._past.add(request_id)

    def next_use(self, key: BlockKey) -> int | None:
        """The number of the next reference by a request that has not passed; None: there is none. Amortised O(1)."""
        uses = self._uses.get(key)
        while uses and self._request_of[uses[0]] in self._past:
            uses.popleft()
        return uses[0] if uses else None
