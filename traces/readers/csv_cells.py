"""The cells of a block of CSV lines as numpy arrays: where each begins and ends, and the plain numbers among them.

Only what is plain is understood here: no quotes, as many cells in every line, digits and nothing else. All the rest is
left to the parser of single rows, which knows the exceptions and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from traces.ragged import IntArray

BoolArray = npt.NDArray[np.bool_]
MAX_DIGITS = 18  # that many always fit in 64 bits
_COMMA, _NEWLINE, _RETURN, _SPACE, _POINT, _ZERO = b",\n\r ."[0], b"\n"[0], b"\r"[0], b" "[0], b"."[0], b"0"[0]


@dataclass(frozen=True, eq=False)
class Cells:
    """`ends[row, column]` is the index in `content` of the separator after a cell, `int64 [num_rows, num_columns]`."""

    content: bytes
    data: npt.NDArray[np.uint8]
    ends: IntArray

    @classmethod
    def of(cls, content: bytes, num_columns: int) -> Cells | None:
        """The cells of `content`, which ends in a newline; None unless every line has `num_columns` unquoted cells."""
        if b'"' in content:
            return None
        data = np.frombuffer(content, dtype=np.uint8)
        separators = np.flatnonzero((data == _COMMA) | (data == _NEWLINE))
        if len(separators) % num_columns:
            return None
        ends = separators.reshape(-1, num_columns)
        is_newline = data[ends] == _NEWLINE
        if is_newline[:, :-1].any() or not is_newline[:, -1].all():
            return None
        return cls(content, data, ends)

    @property
    def num_rows(self) -> int:
        return len(self.ends)

    def line(self, row: int) -> bytes:
        """The bytes of one row, without its newline."""
        return self.content[self._line_starts[row] : self.ends[row, -1]]

    def bounds(self, column: int) -> tuple[IntArray, IntArray]:
        """First index of each cell of a column and the index after its last, without one space before it and a CR."""
        starts = self.ends[:, column - 1] + 1 if column else self._line_starts
        ends = self.ends[:, column]
        starts = starts + (self.data[starts] == _SPACE)
        return starts, ends - ((ends > starts) & (self.data[ends - 1] == _RETURN))

    def texts(self, column: int, rows: IntArray) -> Iterator[tuple[int, bytes]]:
        """Row and text of those cells of a column that are not empty, without the blanks around the text."""
        starts, ends = self.bounds(column)
        rows = rows[ends[rows] > starts[rows]]
        for row, start, end in zip(rows.tolist(), starts[rows].tolist(), ends[rows].tolist(), strict=True):
            yield row, self.content[start:end].strip()

    def whole_numbers(self, column: int) -> tuple[IntArray, BoolArray]:
        """Value of each cell, and whether it is one to 18 digits (the value means nothing where it is not)."""
        return digits(self.data, *self.bounds(column))

    def decimals(self, column: int, num_places: int) -> tuple[IntArray, IntArray, BoolArray]:
        """Whole part of each cell; its fraction in units of the last of `num_places`; whether it is such a number."""
        starts, ends = self.bounds(column)
        points = np.flatnonzero(self.data == _POINT)
        first_point, next_point = np.searchsorted(points, starts), np.searchsorted(points, ends)
        has_point = next_point > first_point
        point_at = np.append(points, len(self.data))[first_point]
        whole_ends = np.where(has_point, point_at, ends)
        whole, is_plain = digits(self.data, starts, whole_ends)
        fraction, is_fraction = fractions(self.data, whole_ends, ends, num_places)
        is_plain &= (next_point - first_point <= 1) & is_fraction
        return whole, fraction, is_plain

    @cached_property
    def _line_starts(self) -> IntArray:
        return np.concatenate(([0], self.ends[:-1, -1] + 1))


def digits(data: npt.NDArray[np.uint8], starts: IntArray, ends: IntArray) -> tuple[IntArray, BoolArray]:
    """Numbers written in `data[start:end]`, and whether these are one to 18 digits; `data[end]` must exist."""
    lengths = ends - starts
    is_plain = (lengths >= 1) & (lengths <= MAX_DIGITS)
    values = np.zeros(len(starts), dtype=np.int64)
    for place in range(min(MAX_DIGITS, int(lengths.max(initial=0)))):
        is_within = place < lengths
        digit = data[np.minimum(starts + place, ends)] - np.uint8(_ZERO)  # what is below "0" wraps around to over 9
        is_plain &= (digit <= 9) | ~is_within
        values = np.where(is_within, values * 10 + digit, values)
    return values, is_plain


def fractions(
    data: npt.NDArray[np.uint8], points: IntArray, ends: IntArray, num_places: int
) -> tuple[IntArray, BoolArray]:
    """What follows a point in `data[point:end]`, in units of the last of `num_places`; nothing at all is 0."""
    values, is_plain = digits(data, np.minimum(points + 1, ends), ends)
    lengths = ends - points - 1
    values = values * np.power(10, np.clip(num_places - lengths, 0, num_places))
    is_absent = points == ends
    return np.where(is_absent, 0, values), is_absent | (is_plain & (lengths <= num_places))
