"""Key chains of passages, each made once for all runs of a process that replay them."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.content import key_chain
from traces.ragged import IntArray

_MOST_BYTES = 256_000_000  # 16 bytes a block: 250 million tokens in blocks of 16


class KeyBook:
    """Chains by what they are made of, so a part of a trace, or one at another rate, finds those of the whole.

    Holds at most `most_bytes`; what comes then is made anew for each run. A book that is pickled arrives empty.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._chains: dict[tuple[int, int, bytes], bytes] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return KeyBook, (self._most_bytes,)

    def chain(self, segments: IntArray, block_size: int, salt: int) -> bytes:
        """The keys of the full blocks of a text; `segments`: (start token, number of tokens), [num_segments, 2]."""
        name = block_size, salt, segments.tobytes()
        chain = self._chains.get(name)
        if chain is None:
            chain = key_chain(_positions(segments), block_size, salt)
            num_bytes = len(chain) + len(name[2])
            if self._num_bytes + num_bytes <= self._most_bytes:
                self._num_bytes += num_bytes
                self._chains[name] = chain
        return chain


def _positions(segments: IntArray) -> bytes:
    """Of all tokens of the text, little-endian int64."""
    parts = [np.arange(start, start + num, dtype="<i8") for start, num in segments.tolist()]
    return b"".join(part.tobytes() for part in parts)
