"""TTL: what was used a moment ago is pinned, for as long as its kind of traffic deserves."""

from __future__ import annotations

from collections.abc import Mapping

from core.candidate_heap import CandidateHeap
from core.errors import InputError
from core.interfaces import Block, PolicyEnv
from core.units import to_ps
from policies.eviction.idle_eviction import IdleEviction, LastUse

PROVIDER_TTL_S = 300.0  # of commercial prompt caches: five minutes, anew at each hit


class TTL(IdleEviction):
    """Pins each block until its last use + `ttl_s`; unpinned ones go first, the one released longest ago before all.

    `category_ttl_s` sets it apart for categories of requests, by number; 0: never pinned. A pin is a promise as far as
    there is other memory: when all that could go is pinned, the block whose pin ends first goes. An expired block stays
    until its memory is needed. With one time for all, that is LRU to the last decision. O(log n) each.

    After the prompt caches of providers (five minutes) and Continuum, arXiv 2511.02230, which pins what a session waits
    with for a tool. An expiry needs no announcement: victims are named at the time of the step that needs the memory.
    """

    def __init__(
        self, env: PolicyEnv, ttl_s: float = PROVIDER_TTL_S, category_ttl_s: Mapping[int, float] | None = None
    ) -> None:
        super().__init__(env)
        self.tells_categories_apart = bool(category_ttl_s)
        self._ttl_ps = _checked_ps("ttl_s", ttl_s)
        self._category_ttl_ps = {
            category: _checked_ps(f"category_ttl_s.{category}", time_s)
            for category, time_s in (category_ttl_s or {}).items()
        }
        self._pinned: CandidateHeap[Block] = CandidateHeap()  # by when the pin ends
        self._unpinned: CandidateHeap[Block] = CandidateHeap()  # by last use

    def rest(self, block: Block, use: LastUse) -> None:
        ttl_ps = self._category_ttl_ps.get(block.category, self._ttl_ps)
        if ttl_ps:
            self._pinned.put(block, (use.time_ps + ttl_ps, use.number))
        else:
            self._unpinned.put(block, use.number)

    def wake(self, block: Block) -> None:
        self._pinned.discard(block)
        self._unpinned.discard(block)

    def choose(self) -> Block:
        now_ps = self.env.now()
        while self._pinned and self._pinned.first_rank()[0] <= now_ps:
            block = self._pinned.pop()
            self._unpinned.put(block, self.last_use[block].number)
        return (self._unpinned or self._pinned).pop()


def _checked_ps(name: str, time_s: float) -> int:
    if not isinstance(time_s, int | float) or not 0 <= time_s < float("inf"):
        raise InputError(f"eviction.{name}={time_s}: expected a number of seconds, from 0 on")
    return to_ps(time_s)
