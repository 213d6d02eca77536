"""What becomes of a row that is wrong: the reading ends, or the row is left out and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from reprlib import Repr
from typing import Protocol, TypeVar

from core.errors import InputError
from traces.readers.source import Source

Row = TypeVar("Row")
Unparsed = TypeVar("Unparsed")


class BadRow(Exception):
    """A row that cannot become a request: `reason` (the key it is counted under), column, value, what was expected.

    `kind` is what `column` counts, where that is no column: a character of the line.
    """

    def __init__(self, reason: str, column: str, value: object, expected: str, kind: str = "column") -> None:
        super().__init__(reason)
        self.reason = reason
        self.column = column
        self.value = value
        self.expected = expected
        self.kind = kind

    def describe(self) -> str:
        """Column, value and what was expected: one line, cut short where a file holds a monster."""
        column = self.column if self.column.isprintable() else repr(self.column)
        found = " is missing" if self.reason == "missing_value" else f": {shown(self.value)}"
        return f"{column[:60]}{found}; expected {self.expected}"


def shown(value: object) -> str:
    """About 60 characters of a value, without writing out the rest of it first."""
    if isinstance(value, Decimal):  # how numbers of JSON come
        return str(value)[:60]
    short = Repr()
    short.maxstring = short.maxother = short.maxlong = 60
    return short.repr(value)


class BadRows(Protocol):
    """Decides what becomes of the bad rows of one file."""

    def handle(self, source: Source, line_number: int | None, bad: BadRow) -> None:
        """Return to leave the row out, or raise InputError. Rows without a line have their place in the column."""

    def num_dropped(self) -> dict[str, int]:
        """Rows left out so far, by reason."""


class RefuseBadRows:
    """The first bad row ends the reading with InputError."""

    def handle(self, source: Source, line_number: int | None, bad: BadRow) -> None:
        where = f"{source.path}, " if line_number is None else f"{source.path}, line {line_number}, "
        raise InputError(f"{where}{bad.kind} {bad.describe()}")

    def num_dropped(self) -> dict[str, int]:
        return {}


class SkipBadRows:
    """Bad rows are left out and counted by reason."""

    def __init__(self) -> None:
        self._num_dropped: Counter[str] = Counter()

    def handle(self, source: Source, line_number: int | None, bad: BadRow) -> None:
        self._num_dropped[bad.reason] += 1

    def num_dropped(self) -> dict[str, int]:
        return dict(sorted(self._num_dropped.items()))


def parse_rows(
    source: Source, lines: Iterator[tuple[int, str]], parse: Callable[[str], Row], bad_rows: BadRows
) -> list[tuple[int, Row]]:
    """(line number, parsed row) of every good line; raises InputError if none is left."""
    rows = good_rows(source, lines, parse, bad_rows)
    require_rows(source, len(rows), bad_rows)
    return rows


def good_rows(
    source: Source, numbered: Iterable[tuple[int, Unparsed]], parse: Callable[[Unparsed], Row], bad_rows: BadRows
) -> list[tuple[int, Row]]:
    """(line number, parsed row) of what `parse` takes, text or values of a line."""
    rows = []
    for line_number, unparsed in numbered:
        try:
            rows.append((line_number, parse(unparsed)))
        except BadRow as bad:
            bad_rows.handle(source, line_number, bad)
    return rows


def require_rows(source: Source, num_rows: int, bad_rows: BadRows) -> None:
    """Raise InputError if no request is left to replay."""
    if num_rows == 0:
        dropped = ", ".join(f"{count} {reason}" for reason, count in bad_rows.num_dropped().items())
        raise InputError(f"{source.path}: no request in it (rows dropped: {dropped or 'none'}); expected at least one")
