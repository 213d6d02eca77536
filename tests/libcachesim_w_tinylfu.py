"""W-TinyLFU as libCacheSim 0.3.5 has it, to show where it leaves the paper: nothing in the product uses this.

Written from its `WTinyLFU.c`, `SLRU.c` and `minimalIncrementCBF.c`; equal to the library in every reference of
Mooncake's synthetic trace. What it does otherwise than Einziger, Friedman and Manes (ToS 2017):

* a hit in the window is not counted;
* whoever leaves the window is counted once more, after its duel or on its way into free room;
* counters are halved after 32 hits *in the main part* per block of it, not after ten uses of any kind per block;
* the sketch is a Bloom filter of counters, 14.4 per block of the main part, of which a content has ten, all counted up
  (its name says that only the least would be). It is made for as many contents as that part holds; with several times
  as many, all look frequent.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from math import ceil, log

WINDOW_RATIO, PROBATION_RATIO, FADES_AFTER = 0.01, 0.2, 32
ERROR_RATIO, SEEDS = 0.001, (0x12345678, 0x12344321)
_MASK = (1 << 64) - 1
_PRIMES = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def xxh64(number: int, seed: int) -> int:
    """XXH64 of the eight bytes of an integer (Collet; the specification's case of eight bytes)."""
    first, second, third, fourth, fifth = _PRIMES
    value = (seed + fifth + 8) ^ (_rotated(number * second & _MASK, 31) * first & _MASK)
    value = (_rotated(value & _MASK, 27) * first + fourth) & _MASK
    value = (value ^ value >> 33) * second & _MASK
    value = (value ^ value >> 29) * third & _MASK
    return value ^ value >> 32


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


class CountingFilter:
    """The sketch, for `num_entries` contents."""

    def __init__(self, num_entries: int) -> None:
        per_entry = -log(ERROR_RATIO) / log(2) ** 2
        self._num_hashes = ceil(per_entry * log(2))
        self._counters = [0] * ceil(per_entry * num_entries)
        self._places: dict[int, list[int]] = {}

    def add(self, content: int) -> None:
        for place in self._placed(content):
            self._counters[place] += 1

    def count(self, content: int) -> int:
        return min(self._counters[place] for place in self._placed(content))

    def halve(self) -> None:
        self._counters = [counter >> 1 for counter in self._counters]

    def _placed(self, content: int) -> list[int]:
        if content not in self._places:
            start, stride = (xxh64(content, seed) & 0xFFFFFFFF for seed in SEEDS)
            places = [(start + turn * stride & 0xFFFFFFFF) % len(self._counters) for turn in range(self._num_hashes)]
            self._places[content] = places
        return self._places[content]


class LibCacheSimWTinyLFU:
    """`access` says whether a content is there, and brings it in."""

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._num_main = num_blocks - int(num_blocks * WINDOW_RATIO)
        self._most_probation = int(self._num_main * PROBATION_RATIO)
        self._most_protected = int(self._num_main * (1 - PROBATION_RATIO))
        self._window: OrderedDict[int, None] = OrderedDict()  # least recent first, as all
        self._probation: OrderedDict[int, None] = OrderedDict()
        self._protected: OrderedDict[int, None] = OrderedDict()
        self._filter = CountingFilter(self._num_main)
        self._num_main_hits = 0

    def access(self, content: int) -> bool:
        if content in self._window:
            self._window.move_to_end(content)
            return True
        if content in self._probation or content in self._protected:
            self._protect(content)
            self._count_main_hit(content)
            return True
        while len(self._window) + self._main_size() >= self._num_blocks:
            self._evict()
        self._window[content] = None
        self._filter.add(content)
        return False

    def _protect(self, content: int) -> None:
        self._probation.pop(content, None)
        self._protected[content] = None
        self._protected.move_to_end(content)
        while len(self._protected) > self._most_protected:
            self._probation[self._protected.popitem(last=False)[0]] = None

    def _count_main_hit(self, content: int) -> None:
        self._filter.add(content)
        self._num_main_hits += 1
        if self._num_main_hits == FADES_AFTER * self._num_main:
            self._num_main_hits = 0
            self._filter.halve()

    def _evict(self) -> None:
        is_over = False
        while not is_over:
            candidate, _ = self._window.popitem(last=False)
            is_over = self._main_size() == self._num_main
            if not is_over or self._wins(candidate):
                free = len(self._probation) < self._most_probation or len(self._protected) >= self._most_protected
                (self._probation if free else self._protected)[candidate] = None
            self._filter.add(candidate)

    def _wins(self, candidate: int) -> bool:
        """Whether it is counted more often than the block that would go; if so, that one goes."""
        main = self._probation or self._protected
        victim = next(iter(main))
        if self._filter.count(candidate) <= self._filter.count(victim):
            return False
        del main[victim]
        return True

    def _main_size(self) -> int:
        return len(self._probation) + len(self._protected)


def misses(contents: Iterable[int], num_blocks: int) -> set[int]:
    """The places of the references that miss. Contents are numbered from 1 for the library, which has no 0."""
    policy = LibCacheSimWTinyLFU(num_blocks)
    return {place for place, content in enumerate(contents) if not policy.access(content + 1)}
