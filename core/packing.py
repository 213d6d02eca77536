"""Whole numbers in little memory, and sums of their products without overflow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_LIMB_BITS = 16
_TOP_SHIFT = 64 - _LIMB_BITS
_NUM_AT_ONCE = 1 << 15


def narrowed(column: NDArray[Any]) -> NDArray[Any]:
    """A copy in the smallest signed integers that hold its values."""
    least, most = (int(column.min()), int(column.max())) if column.size else (0, 0)
    for width in (np.int8, np.int16, np.int32):
        if np.iinfo(width).min <= least and most <= np.iinfo(width).max:
            return column.astype(width)
    return column.astype(np.int64)


def exact_dot(counts: NDArray[Any], times_ps: NDArray[Any]) -> int:
    """The sum of `counts * times_ps`, exactly: blocks times picoseconds soon go beyond 64 bits.

    Counts are below 2**31 in size. The times are taken 16 bits at a time, 2**15 of them at once: such a sum stays below
    2**62.
    """
    total = 0
    for start in range(0, len(counts), _NUM_AT_ONCE):
        times = times_ps[start : start + _NUM_AT_ONCE].astype(np.int64)
        factors = counts[start : start + _NUM_AT_ONCE].astype(np.int64)
        for shift in range(0, _TOP_SHIFT, _LIMB_BITS):
            total += int(np.dot(factors, times >> shift & ((1 << _LIMB_BITS) - 1))) << shift
        total += int(np.dot(factors, times >> _TOP_SHIFT)) << _TOP_SHIFT  # with the sign
    return total
