"""W-TinyLFU: an LRU window in front of SLRU, and a frequency sketch that decides who may pass."""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.frequency_sketch import FrequencySketch
from policies.eviction.shares import UNBOUNDED, share_blocks

SKETCH_KEYS_UNBOUNDED = 1 << 16  # in an unbounded pool, where nobody asks for counts


class _Part(IntEnum):
    WINDOW = 0
    PROBATION = 1
    PROTECTED = 2


class WTinyLFU(ContentEviction):
    """New content enters a small LRU window. What leaves it contends with the LRU block on probation: the one that was
    used more often of late stays (the newcomer only if strictly more), the other goes. A hit on probation protects;
    what the protected part has too many of goes back on probation.

    Einziger, Friedman and Manes, TinyLFU, ACM ToS 2017: window 1 % of the pool; of the rest a fifth on probation and
    four fifths protected; four-bit counters, halved after ten uses per block of the pool. O(1) each.

    Sizes count referenced blocks too. A part whose blocks are all referenced has no contender.
    """

    def __init__(self, env: PolicyEnv, window_ratio: float = 0.01, protected_ratio: float = 0.8) -> None:
        super().__init__(env)
        if not 0 < protected_ratio < 1:
            raise InputError(f"eviction.protected_ratio={protected_ratio}: expected a ratio in (0, 1)")
        window = share_blocks(env, "window_ratio", window_ratio)
        protected = UNBOUNDED if env.num_blocks is None else int((env.num_blocks - window) * protected_ratio)
        self._share = {_Part.WINDOW: window, _Part.PROTECTED: protected}
        self._sketch = FrequencySketch(env.num_blocks or SKETCH_KEYS_UNBOUNDED)
        self._part: dict[Block, _Part] = {}
        self._num = dict.fromkeys(_Part, 0)  # resident blocks, referenced ones included
        self._resting: dict[_Part, OrderedDict[Block, None]] = {part: OrderedDict() for part in _Part}  # LRU first

    def enter(self, block: Block) -> None:
        self._sketch.add(block.key)
        self._part[block] = _Part.WINDOW
        self._num[_Part.WINDOW] += 1

    def hit(self, block: Block) -> None:
        self._sketch.add(block.key)
        if self._part[block] is _Part.PROBATION:
            self._move(block, _Part.PROTECTED)

    def _move(self, block: Block, part: _Part) -> None:
        self._num[self._part[block]] -= 1
        self._num[part] += 1
        self._part[block] = part

    def wake(self, block: Block) -> None:
        for resting in self._resting.values():
            resting.pop(block, None)

    def rest(self, block: Block) -> None:
        """Also sends on probation what its part has too many of: there was room, or nobody would be here."""
        part = self._part[block]
        self._resting[part][block] = None
        if part is not _Part.PROBATION:
            while self._num[part] > self._share[part] and self._resting[part]:
                self._to_probation(self._resting[part].popitem(last=False)[0])

    def _to_probation(self, block: Block) -> None:
        self._move(block, _Part.PROBATION)
        self._resting[_Part.PROBATION][block] = None

    def choose(self, incoming: BlockKey | None) -> Block:
        main = self._resting[_Part.PROBATION] or self._resting[_Part.PROTECTED]
        window = self._resting[_Part.WINDOW]
        if not main or not window or self._num[_Part.WINDOW] < self._share[_Part.WINDOW]:
            return (main or window).popitem(last=False)[0]
        candidate, victim = next(iter(window)), next(iter(main))
        del window[candidate]
        if self._sketch.count(candidate.key) <= self._sketch.count(victim.key):
            return candidate
        del main[victim]
        self._to_probation(candidate)
        return victim

    def evicted(self, block: Block) -> None:
        self._num[self._part.pop(block)] -= 1

    def dropped(self, block: Block) -> None:
        self.evicted(block)
