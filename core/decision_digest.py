"""One digest for a sequence of decisions, however they came together."""

from __future__ import annotations

import hashlib
from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

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

    def update(self, heads: Ints, owners: Ints, values: array[int]) -> None:
        """`heads` as `DecisionLog` keeps them, [num_heads, 4]; `owners` of the rows whose head says EACH."""
        self._values.update(np.frombuffer(values, dtype=np.int64).astype("<i8", copy=False).data)
        runs = _merged(np.concatenate([self._open, _spread(heads, owners)]))
        self._open = runs[-1:]
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
    rows = np.repeat(is_each, num_rows)
    spread[rows, 2] = owners
    spread[rows, 3] = 1
    return spread


def _merged(runs: Ints) -> Ints:
    """Neighbours of one step, event and request are one run."""
    if len(runs) < 2:
        return runs
    begins = np.append(True, np.zeros(len(runs) - 1, dtype=bool))
    for column in runs.T[:3]:  # one by one: `any` over rows of three takes twice as long
        begins[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(begins)
    merged = runs[starts]
    merged[:, 3] = np.add.reduceat(runs[:, 3], starts)
    return merged
