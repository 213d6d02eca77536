"""What the columns of CSV traces hold, each read in two ways: cell by cell with errors, and by blocks where plain."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple, Protocol

import numpy as np

from traces.ragged import IntArray
from traces.readers.bad_rows import BadRow
from traces.readers.csv_cells import MAX_DIGITS, BoolArray, Cells
from traces.readers.fields import MAX_TOKENS, PS_PER_S, num_tokens

MISSING_S = -1  # whole seconds of a row that tells no time
NUM_PLACES = 12  # a picosecond
_MAX_SECONDS = 10**12
_SECONDS = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d\d?)?", re.ASCII)


class Parsed(NamedTuple):
    """Values of a column's cells, int64 `[num_values, num_rows]`; where a cell is not plain they mean nothing."""

    values: tuple[IntArray, ...]
    is_plain: BoolArray


class Kind(Protocol):
    """A way to read the cells of a column, each as one or more integers."""

    def parse(self, name: str, text: str) -> tuple[int, ...]:
        """The values of one cell of the column `name`, blanks around it removed; raises BadRow."""

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        """The values of all cells of a column that `parse` would accept, as far as they are plain."""


class Column(NamedTuple):
    """A column to be read: its name in the header, and what it holds."""

    name: str
    kind: Kind


class Tokens:
    """A number of tokens, at least 1; `what` is prompt or output."""

    def __init__(self, what: str) -> None:
        self._what = what

    def parse(self, name: str, text: str) -> tuple[int]:
        return (num_tokens(name, int(text) if _is_whole(text) else text, self._what),)

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        values, is_plain = cells.whole_numbers(column)
        return Parsed((values,), is_plain & (values >= 1) & (values <= MAX_TOKENS))


class WholeNumber:
    """A number from 0 on, of 18 digits at most."""

    def parse(self, name: str, text: str) -> tuple[int]:
        if not _is_whole(text):
            raise BadRow("bad_value", name, text, f"a whole number from 0 on, of at most {MAX_DIGITS} digits")
        return (int(text),)

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        values, is_plain = cells.whole_numbers(column)
        return Parsed((values,), is_plain)


class Seconds:
    """A time in seconds, exact to the picosecond (finer digits are rounded): whole seconds and picoseconds beyond.

    An empty cell is a row without a time: `MISSING_S`.
    """

    def parse(self, name: str, text: str) -> tuple[int, int]:
        if not text:
            return MISSING_S, 0
        seconds = Fraction(text) if len(text) <= 64 and _SECONDS.fullmatch(text) else None
        if seconds is None or seconds > _MAX_SECONDS:
            raise BadRow("bad_time", name, text, f"a number of seconds from 0 to {_MAX_SECONDS}")
        return divmod(round(seconds * PS_PER_S), PS_PER_S)

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        whole_s, rest_ps, is_plain = cells.decimals(column, NUM_PLACES)
        return Parsed((whole_s, rest_ps), is_plain & (whole_s < _MAX_SECONDS))


class Labels:
    """A name of any kind; equal ones become equal numbers from 0 on, and an empty one -1.

    Names in rows that are left out may take numbers, too: see `by_first_appearance`.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {b"": -1}

    def parse(self, name: str, text: str) -> tuple[int]:
        return (self.number(text.encode()),)

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        numbers = np.full(cells.num_rows, -1, dtype=np.int64)
        for row, text in cells.texts(column, np.arange(cells.num_rows)):
            numbers[row] = self.number(text)
        return Parsed((numbers,), np.ones(cells.num_rows, dtype=np.bool_))

    def number(self, label: bytes) -> int:
        return self._numbers.setdefault(label, len(self._numbers) - 1)


class ObjectIds:
    """What names an object: a number of up to 18 digits stands for itself, other names become numbers below 0."""

    def __init__(self) -> None:
        self._labels = Labels()

    def parse(self, name: str, text: str) -> tuple[int]:
        return (int(text) if _is_whole(text) else -2 - self._labels.number(text.encode()),)

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        ids, is_number = cells.whole_numbers(column)
        ids[~is_number] = -1
        for row, text in cells.texts(column, np.flatnonzero(~is_number)):
            ids[row] = self.parse("", text.decode())[0]
        return Parsed((ids,), np.ones(cells.num_rows, dtype=np.bool_))


def by_first_appearance(labels: IntArray) -> IntArray:
    """Labels of the rows that are kept, numbered anew from 0 on as they first appear; -1 stays."""
    first_row = np.full(labels.max() + 2, len(labels))  # by label; the last entry is that of -1
    first_row[labels[::-1]] = np.arange(len(labels))[::-1]
    first_row[-1] = -1
    number = np.empty_like(first_row)
    number[np.argsort(first_row, kind="stable")] = np.arange(-1, len(first_row) - 1)
    renumbered: IntArray = number[labels]
    return renumbered


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
