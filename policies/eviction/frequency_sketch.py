"""Approximate counts of many keys in little memory: a count-min sketch of four-bit counters that fades."""

from __future__ import annotations

from hashlib import blake2b

from core.interfaces import BlockKey

NUM_ROWS = 4
MOST = 15
_HALVED = bytes(count >> 1 for count in range(256))


class FrequencySketch:
    """The least of four counters, each shared with other keys: never below the true count (up to 15) since fading.

    After `sample` additions all counters are halved: TinyLFU's reset. O(1) each, amortised. Keys are hashed by what
    they are, not by Python's `hash`, which differs from process to process.
    """

    def __init__(self, num_keys: int) -> None:
        """For a cache of `num_keys`: each row at least four times as wide, and a sample of ten times as many."""
        self._width = 4 << max(3, (num_keys - 1).bit_length())
        self._rows = [bytearray(self._width) for _ in range(NUM_ROWS)]
        self._sample = 10 * num_keys
        self._num_added = 0

    def add(self, key: BlockKey) -> None:
        for row, place in zip(self._rows, self._places(key), strict=True):
            if row[place] < MOST:
                row[place] += 1
        self._num_added += 1
        if self._num_added == self._sample:
            self._rows = [row.translate(_HALVED) for row in self._rows]
            self._num_added //= 2

    def count(self, key: BlockKey) -> int:
        return min(row[place] for row, place in zip(self._rows, self._places(key), strict=True))

    def _places(self, key: BlockKey) -> list[int]:
        digest = int.from_bytes(blake2b(repr(key).encode(), digest_size=4 * NUM_ROWS).digest())
        return [(digest >> (32 * row)) % self._width for row in range(NUM_ROWS)]
