"""Whole numbers in little memory, and sums of their products without overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def narrowed(column: NDArray[Any]) -> NDArray[Any]:
    """A copy in the smallest signed integers that hold its values."""
    least, most = (int(column.min()), int(column.max())) if column.size else (0, 0)
    for width in (np.int8, np.int16, np.int32):
        if np.iinfo(width).min <= least and most <= np.iinfo(width).max:
            return column.astype(width)
    return column.astype(np.int64)


def exact_dot(counts: NDArray[Any], times_ps: NDArray[Any]) -> int:
    """The sum of `counts * times_ps`, exactly: blocks times picoseconds soon go beyond 64 bits.

    Integers tell it modulo 2**64, floats which of the numbers that leave that remainder it is: these may be off by
    2**63, which is more than they lose in sums below 2**90 of ten million terms.
    """
    if not counts.any():
        return 0
    counts, times_ps = counts.astype(np.int64, copy=False), times_ps.astype(np.int64, copy=False)
    remainder, estimate = int(np.dot(counts, times_ps)), int(np.dot(counts.astype(np.float64), times_ps))
    return remainder + ((estimate - remainder + (1 << 63)) >> 64 << 64)
