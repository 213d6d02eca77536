"""Workload-aware: how likely it is to be used again soon, by the habits of its kind of request."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from core.candidate_heap import CandidateHeap
from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from core.units import to_ps
from policies.eviction.idle_eviction import IdleEviction, LastUse
from policies.eviction.reuse_times import ReuseTimes


class WorkloadAware(IdleEviction):
    """Evicts the least (probability of reuse within the next `life_s`, -position): what is hardly going to be used, and
    of equals the deepest. Wang et al., KVCache Cache in the Wild, ATC 2025, section 4.2. Frequency plays no part.

    The probability follows from the time since the last use and from the category's reuse times, to which an
    exponential distribution is fitted every `refit_s` (`ReuseTimes`; the share of uses that are ever followed by
    another counts in). Within a category the longest idle block comes first, so only the heads of the categories are
    compared: O(categories + log n) a victim. With one category that is LRU, but for what was last used at one moment.

    A category is the trace's kind of request where it tells one, else its tenant. Reuse of evicted content is observed,
    too, for twice as many keys as the pool has blocks: otherwise short reuse times would be all that is ever seen.
    """

    tells_categories_apart = True

    def __init__(self, env: PolicyEnv, life_s: float = 300.0, refit_s: float = 60.0) -> None:
        super().__init__(env)
        for name, time_s in (("life_s", life_s), ("refit_s", refit_s)):
            if not isinstance(time_s, int | float) or not 1e-12 <= time_s < float("inf"):
                raise InputError(f"eviction.{name}={time_s}: expected a number of seconds above 0")
        self._life_ps, self._refit_ps = to_ps(life_s), to_ps(refit_s)
        self._next_refit_ps = self._refit_ps
        self._reuse_times = ReuseTimes(self._life_ps)
        self._idle: dict[int, CandidateHeap[Block]] = {}  # by category: longest idle first, then the deepest
        self._evicted: OrderedDict[BlockKey, int] = OrderedDict()  # when content that is gone was used last

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            assert block.key is not None
            last_ps = self._evicted.pop(block.key, None)
            if last_ps is None:
                self._reuse_times.add_use(block.category)
            else:
                self._reuse_times.add_reuse(block.category, self.env.now() - last_ps)

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        now_ps = self.env.now()
        for block in blocks:
            use = self.last_use.get(block)  # None: it is in use
            self._reuse_times.add_reuse(block.category, 0 if use is None else now_ps - use.time_ps)
        super().on_hit(blocks, readmission)

    def rest(self, block: Block, use: LastUse) -> None:
        if block.category not in self._idle:
            self._idle[block.category] = CandidateHeap()
        self._idle[block.category].put(block, (use.time_ps, -block.position, use.number))

    def wake(self, block: Block) -> None:
        self._idle[block.category].discard(block)

    def choose(self) -> Block:
        now_ps = self.env.now()
        if now_ps >= self._next_refit_ps:
            self._reuse_times.refit()
            self._next_refit_ps = now_ps + self._refit_ps
        heads = [
            (self._reuse_times.log_probability(category, now_ps - time_ps, self._life_ps), depth, number, category)
            for category, idle in self._idle.items()
            if idle
            for time_ps, depth, number in (idle.first_rank(),)
        ]
        return self._idle[min(heads)[-1]].pop()

    def on_evict(self, block: Block) -> None:
        use = self.last_use.get(block)
        if use is not None and block.key is not None:
            self._evicted[block.key] = use.time_ps
            if self.env.num_blocks is not None and len(self._evicted) > 2 * self.env.num_blocks:
                self._evicted.popitem(last=False)
        super().on_evict(block)
