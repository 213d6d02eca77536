"""Belady's MIN: the bound that no policy beats on blocks of equal worth."""

from __future__ import annotations

import heapq

from core.errors import InputError
from core.interfaces import Block, BlockKey, Future, PolicyEnv
from policies.eviction.content_eviction import ContentEviction

NEVER = 1 << 62


class Belady(ContentEviction):
    """Evicts the block that is asked for last in the future, first of all one that is never asked for again; of those
    the deepest in its chain. Belady, A study of replacement algorithms for a virtual-storage computer, 1966.

    It knows the prompts to come in their order of arrival, not how admission, preemption or unknown outputs will change
    things; where nothing is pinned and all content is known it is optimal. Amortised O(log n) each.

    Raises InputError where nobody knows the future.
    """

    clairvoyant = True

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        if env.future is None:
            raise InputError("eviction: Belady must know the requests to come; expected a replay of a trace")
        self._future: Future = env.future
        self._resting: dict[Block, int] = {}  # number of its live entry; others are stale
        self._num_entries = 0
        self._farthest: list[tuple[int, int, int, Block]] = []  # (-next use, -position, entry, block)
        self._nearest: list[tuple[int, int, Block]] = []  # (next use, entry, block)

    def enter(self, block: Block) -> None:
        """What it is worth is asked when it rests."""

    def wake(self, block: Block) -> None:
        self._resting.pop(block, None)

    def rest(self, block: Block) -> None:
        assert block.key is not None
        use = self._future.next_use(block.key)
        self._num_entries += 1
        self._resting[block] = self._num_entries
        heapq.heappush(self._farthest, (-(NEVER if use is None else use), -block.position, self._num_entries, block))
        if use is not None:
            heapq.heappush(self._nearest, (use, self._num_entries, block))
        if len(self._farthest) > 2 * len(self._resting) + 64:
            self._farthest = [entry for entry in self._farthest if self._resting.get(entry[3]) == entry[2]]
            heapq.heapify(self._farthest)
            self._nearest = [entry for entry in self._nearest if self._resting.get(entry[2]) == entry[1]]
            heapq.heapify(self._nearest)

    def choose(self, incoming: BlockKey | None) -> Block:
        self._look_again()
        while True:
            _, _, number, block = heapq.heappop(self._farthest)
            if self._resting.get(block) == number:
                del self._resting[block]
                return block

    def _look_again(self) -> None:
        """At blocks whose next use has passed without a hit. Where the nearest use has not passed, none has."""
        while self._nearest:
            use, number, block = self._nearest[0]
            if self._resting.get(block) == number:
                assert block.key is not None
                if self._future.next_use(block.key) == use:
                    return
                self.rest(block)
                continue
            heapq.heappop(self._nearest)

    def evicted(self, block: Block) -> None:
        """Nothing is remembered."""

    def dropped(self, block: Block) -> None:
        """Nothing is remembered."""
