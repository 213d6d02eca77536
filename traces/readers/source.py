"""What all readers share: the lines of a trace file, and what becomes of a row that is wrong."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from core.errors import InputError

Row = TypeVar("Row")


@dataclass(frozen=True)
class Source:
    """The text of one trace file, line by line, with the digest of its bytes."""

    path: Path
    sha256: str
    lines: list[str]

    @classmethod
    def load(cls, path: Path) -> Source:
        """Read a UTF-8 file; a byte order mark, CRLF and a missing last newline make no difference."""
        try:
            content = path.read_bytes()
            text = content.decode("utf-8-sig")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); expected a trace file") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start} is not UTF-8; expected a text file (unpacked)") from error
        # Not splitlines(): JSON strings may hold U+2028 and its kin unescaped.
        lines = [line.rstrip("\r") for line in text.split("\n")]
        return cls(path, hashlib.sha256(content).hexdigest(), lines)

    def numbered_lines(self) -> Iterator[tuple[int, str]]:
        """(line number from 1, text) of every line that is not blank."""
        return ((number, line) for number, line in enumerate(self.lines, start=1) if line and not line.isspace())


class BadRow(Exception):
    """A row that cannot become a request: `reason` (the key it is counted under), column, value, what was expected."""

    def __init__(self, reason: str, column: str, value: object, expected: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.column = column
        self.value = value
        self.expected = expected


class BadRows(Protocol):
    """Decides what becomes of the bad rows of one file."""

    def handle(self, source: Source, line_number: int, bad: BadRow) -> None:
        """Return to leave the row out, or raise InputError."""

    def num_dropped(self) -> dict[str, int]:
        """Rows left out so far, by reason."""


class RefuseBadRows:
    """The first bad row ends the reading with InputError."""

    def handle(self, source: Source, line_number: int, bad: BadRow) -> None:
        value = repr(bad.value)
        shown = value if len(value) <= 60 else value[:57] + "..."
        raise InputError(f"{source.path}, line {line_number}, column {bad.column}: {shown}; expected {bad.expected}")

    def num_dropped(self) -> dict[str, int]:
        return {}


class SkipBadRows:
    """Bad rows are left out and counted by reason."""

    def __init__(self) -> None:
        self._num_dropped: Counter[str] = Counter()

    def handle(self, source: Source, line_number: int, bad: BadRow) -> None:
        self._num_dropped[bad.reason] += 1

    def num_dropped(self) -> dict[str, int]:
        return dict(sorted(self._num_dropped.items()))


def parse_rows(
    source: Source, lines: Iterator[tuple[int, str]], parse: Callable[[str], Row], bad_rows: BadRows
) -> list[tuple[int, Row]]:
    """(line number, parsed row) of every good line; raises InputError if none is left."""
    rows = []
    for line_number, line in lines:
        try:
            rows.append((line_number, parse(line)))
        except BadRow as bad:
            bad_rows.handle(source, line_number, bad)
    require_rows(source, len(rows), bad_rows)
    return rows


def require_rows(source: Source, num_rows: int, bad_rows: BadRows) -> None:
    """Raise InputError if no request is left to replay."""
    if num_rows == 0:
        dropped = ", ".join(f"{count} {reason}" for reason, count in bad_rows.num_dropped().items())
        raise InputError(f"{source.path}: no request in it (rows dropped: {dropped or 'none'}); expected at least one")
