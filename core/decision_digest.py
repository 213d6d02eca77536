"""One digest for a sequence of decisions, however they came together."""

from __future__ import annotations

import hashlib
import sys
from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_IS_LITTLE_ENDIAN: Final = sys.byteorder == "little"
EACH: Final = -2  # in a head: every row of the run has an owner of its own


class DecisionDigest:
    """Takes decisions piece by piece. Equal digests mean equal decisions, block ids included.

    A run is all neighbouring decisions of one step, event and request. Two sha256, one over the runs (step, event,
    request, number of values) and one over the values (blocks or counts), little-endian int64 both, are hashed into
    one: a block costs 8 bytes, where a row of its own would cost 32.
    """

    def __init__(self) -> None:
        self._runs = hashlib.sha256()
        self._values = hashlib.sha256()
        self._open: Ints = np.zeros((0, 4), dtype=np.int64)  # the last run, which may go on

    def add_values(self, values: array[int]) -> None:
        """The next decisions' blocks or counts."""
        self._values.update(values if _IS_LITTLE_ENDIAN else np.frombuffer(values, dtype=np.int64).astype("<i8").data)

    def add_runs(self, heads: Ints, owners: Ints) -> None:
        """Who got them, and when: `heads` as `DecisionLog` keeps them, [num_heads, 4]; `owners` of the rows whose head
        says EACH.
        """
        runs = _merged(_spread(np.concatenate([self._open, heads]), owners))
        self._open = runs[-1:].copy()
        self._runs.update(np.ascontiguousarray(runs[:-1], dtype="<i8").data)

    def hexdigest(self) -> str:
        runs = self._runs.copy()
        runs.update(np.ascontiguousarray(self._open, dtype="<i8").data)
        return hashlib.sha256(runs.digest() + self._values.digest()).hexdigest()


def _spread(heads: Ints, owners: Ints) -> Ints:
    """A head for each owner."""
    is_each = heads[:, 2] == EACH
    num_rows = np.where(is_each, heads[:, 3], 1)
    spread = np.repeat(heads, num_rows, axis=0)
    rows = np.flatnonzero(np.repeat(is_each, num_rows))
    spread[rows, 2] = owners
    spread[rows, 3] = 1
    return spread


def _merged(runs: Ints) -> Ints:
    """Neighbours of one step, event and request are one run: there are few of those."""
    same = np.flatnonzero(runs[1:, 2] == runs[:-1, 2])  # the same request as the run before
    goes_on = same[(runs[same + 1, :2] == runs[same, :2]).all(axis=1)] + 1
    if not len(goes_on):
        return runs
    begins = np.ones(len(runs), dtype=bool)
    begins[goes_on] = False
    starts = np.flatnonzero(begins)
    merged = runs[starts]
    merged[:, 3] = np.add.reduceat(runs[:, 3], starts)
    return merged
