"""Rows of unequal length in one flat array: block hashes of a prompt, segments of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Ragged:
    """`num_rows` rows; row `i` is `values[offsets[i]:offsets[i + 1]]`.

    `values` is int64 `[total]` (ids) or `[total, 2]` (segments: start token, number of tokens);
    `offsets` is int64 `[num_rows + 1]`.
    """

    values: IntArray
    offsets: IntArray

    @classmethod
    def of_ids(cls, rows: Sequence[Sequence[int]]) -> Ragged:
        """Rows of plain integers, such as block hash ids."""
        return cls(np.array(list(chain.from_iterable(rows)), dtype=np.int64), _offsets(rows))

    @classmethod
    def of_arrays(cls, rows: Sequence[IntArray]) -> Ragged:
        """Rows of ids that are arrays already: no Python integer is made."""
        return cls(np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64), _offsets(rows))

    @classmethod
    def joined(cls, parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, of which there is one at least."""
        values = np.concatenate([part.values for part in parts])
        return cls(values, np.cumsum(np.concatenate([[0], *(part.row_lengths for part in parts)])))

    @classmethod
    def of_segments(cls, rows: Sequence[Sequence[Sequence[int]]]) -> Ragged:
        """Rows of (start_token, num_tokens) pairs."""
        return cls(np.array(list(chain.from_iterable(rows)), dtype=np.int64).reshape(-1, 2), _offsets(rows))

    @property
    def num_rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def row_lengths(self) -> IntArray:
        """Number of entries of each row, `[num_rows]`."""
        return np.diff(self.offsets)

    def row(self, index: int) -> IntArray:
        """The entries of one row (a view)."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def row_sums(self, per_entry: IntArray) -> IntArray:
        """Sum of a quantity given per entry `[total]` over each row, `[num_rows]`; an empty row sums to 0."""
        running = np.concatenate(([0], np.cumsum(per_entry)))
        sums: IntArray = running[self.offsets[1:]] - running[self.offsets[:-1]]
        return sums

    def take(self, rows: IntArray) -> Ragged:
        """The given rows, in the given order."""
        lengths = self.row_lengths[rows]
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        entries = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], lengths)
        return Ragged(self.values[entries], offsets)


def _offsets(rows: Sequence[Sequence[Any]] | Sequence[IntArray]) -> IntArray:
    return np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
