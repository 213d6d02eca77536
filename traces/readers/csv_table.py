"""A CSV trace as columns of integers, read by the names in its header, block by block."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from core.errors import InputError
from traces.ragged import IntArray
from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.csv_cells import Cells
from traces.readers.csv_columns import Column
from traces.readers.source import LineBlock, Source

_MAX_HEADER_CHARACTERS = 1 << 16
_MAX_ROW_CHARACTERS = 1 << 20  # a row that is split into cells of a character or two takes twenty times its text
_BLANKS = " \t\n\r\v\f"  # as bytes.strip() takes them


class Rows(NamedTuple):
    """The good rows of a table: the values of the columns asked for, in that order, and the line of each row."""

    values: tuple[IntArray, ...]
    line_numbers: IntArray


class CsvTable:
    """The rows of `source` below its header; `names` are the columns as the header calls them."""

    def __init__(self, source: Source, names: Sequence[str], blocks: Iterator[LineBlock]) -> None:
        self._source = source
        self.names = tuple(names)
        self._blocks = blocks

    @classmethod
    def with_header(cls, source: Source) -> CsvTable:
        """The table whose first line that is not blank names the columns."""
        blocks = source.line_blocks()
        for block in blocks:
            content = block.content.lstrip()
            if content:
                line_number = block.first_line_number + block.content.count(b"\n", 0, len(block.content) - len(content))
                line, _, rest = content.partition(b"\n")
                names = header_names(source.text(LineBlock(line_number, line)))
                return cls(source, names, chain([LineBlock(line_number + 1, rest)], blocks))
        return cls(source, (), blocks)

    def read(self, columns: Sequence[Column], bad_rows: BadRows) -> Rows:
        """The columns asked for; `bad_rows` decides on rows that are wrong.

        Takes time in proportion to the file, and numpy's where rows are plain. Raises InputError where a column is
        missing or there twice, and where no good row is left.
        """
        for column in columns:
            found = self.names.count(column.name)
            if found != 1:
                header = ",".join(self.names)[:60]
                expected = f"one of each: {', '.join(column.name for column in columns)}"
                where = f"{self._source.path}, header {header!r}"
                told = f"{found} columns {column.name}" if found else f"no column {column.name}"
                raise InputError(f"{where}: {told}; expected {expected}")
        reader = _BlockReader(self._source, self.names, columns, bad_rows)
        parts = [part for part in map(reader.read, self._blocks) if len(part.line_numbers)]
        require_rows(self._source, len(parts), bad_rows)
        return Rows(
            tuple(np.concatenate(column) for column in zip(*(part.values for part in parts), strict=True)),
            np.concatenate([part.line_numbers for part in parts]),
        )


def header_names(line: str) -> list[str]:
    """The column names of a header line; none if it cannot be one."""
    if len(line) > _MAX_HEADER_CHARACTERS:
        return []
    try:
        return [name.strip() for name in _split(line)]
    except BadRow:
        return []


class _BlockReader:
    """Reads blocks of lines: plain rows together, all others one by one."""

    def __init__(self, source: Source, names: Sequence[str], columns: Sequence[Column], bad_rows: BadRows) -> None:
        self._source = source
        self._names = names
        self._columns = [(column, names.index(column.name)) for column in columns]
        self._bad_rows = bad_rows

    def read(self, block: LineBlock) -> Rows:
        if not block.content.isascii():
            self._source.text(block)  # must be UTF-8, in columns that are not read, too
        cells = Cells.of(block.content + b"\n" * (not block.content.endswith(b"\n")), len(self._names))
        return self._read_lines(block) if cells is None else self._read_cells(cells, block.first_line_number)

    def _read_cells(self, cells: Cells, first_line_number: int) -> Rows:
        parsed = [column.kind.parse_block(cells, at) for column, at in self._columns]
        values = np.stack([values for column in parsed for values in column.values])
        is_good = np.logical_and.reduce([column.is_plain for column in parsed])
        line_numbers = first_line_number + np.arange(cells.num_rows)
        for row in np.flatnonzero(~is_good).tolist():
            row_values = self._read_row(int(line_numbers[row]), cells.line(row).decode().rstrip("\r"))
            if row_values is not None:
                values[:, row] = row_values
                is_good[row] = True
        return Rows(tuple(values[:, is_good]), line_numbers[is_good])

    def _read_lines(self, block: LineBlock) -> Rows:
        rows = {number: self._read_row(number, line) for number, line in self._source.lines_of(block)}
        good = {number: values for number, values in rows.items() if values is not None}
        values = np.array(list(good.values()), dtype=np.int64)
        return Rows(tuple(values.T), np.array(list(good), dtype=np.int64))

    def _read_row(self, line_number: int, line: str) -> list[int] | None:
        """The values of one row; None if it is left out."""
        try:
            return self._parse(line)
        except BadRow as bad:
            self._bad_rows.handle(self._source, line_number, bad)
            return None

    def _parse(self, line: str) -> list[int]:
        if len(line) > _MAX_ROW_CHARACTERS:
            raise BadRow("malformed_row", "of all", line[:100], f"a row of at most {_MAX_ROW_CHARACTERS:,} characters")
        cells = _split(line)
        if len(cells) != len(self._names):
            expected = f"{len(self._names)} cells: {','.join(self._names)[:200]}"
            raise BadRow("malformed_row", f"{len(cells)} of {len(self._names)}", line, expected)
        return [
            value for column, at in self._columns for value in column.kind.parse(column.name, cells[at].strip(_BLANKS))
        ]


def _split(line: str) -> list[str]:
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise BadRow("malformed_row", "of a quoted cell", line, f"closed quotes ({error})") from error
