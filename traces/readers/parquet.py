"""kvtwin's own columns in a Parquet file (see `traces.parquet`)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np

from core.errors import InputError
from traces.parquet import DESCRIPTION, METADATA_KEY, NAME, TIME_DIGITS, arrow
from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.own_header import SCHEMA, Header, parse_header
from traces.readers.own_row import OPTIONAL_KEYS
from traces.readers.source import Head, Source
from traces.schema import IntArray, Ragged, Trace

__all__ = ["DESCRIPTION", "NAME", "read", "recognises"]

_MAGIC = b"PAR1"
_NO_HEADER = json.dumps({"kvtwin": SCHEMA}).encode()
_NEEDED = ("arrival_s", "num_prompt_tokens", "num_output_tokens")
_RAGGED = ("hash_ids", "prompt_segments", "output_segments")


def recognises(head: Head) -> bool:
    """Whether a file is Parquet, whatever its columns."""
    return head.bytes.startswith(_MAGIC)


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin."""
    table, header = _table(source)
    columns = _Columns(source, table)
    numbers = {key: columns.needed(key) for key in _NEEDED}
    optional = {
        optional.column: columns.numbers(key, optional.default)
        for key, optional in OPTIONAL_KEYS.items()
        if key in table.column_names
    }
    trace = Trace(
        name=header.name or source.name,
        arrival_ps=numbers["arrival_s"],
        num_prompt_tokens=numbers["num_prompt_tokens"],
        num_output_tokens=numbers["num_output_tokens"],
        hash_block_tokens=header.hash_block_tokens,
        **{key: columns.lists(key) for key in _RAGGED if key in table.column_names},  # type: ignore[arg-type]
        **optional,  # type: ignore[arg-type]  # the names are those of the fields
        category_names=header.category_names,
        recipe=header.recipe,
        sha256=source.sha256,
        licence=header.licence,
    )
    return _good_rows(source, trace, bad_rows).sorted_by_arrival()


def _table(source: Source) -> tuple[Any, Header]:
    pa = arrow()
    try:
        table = pa.parquet.read_table(pa.BufferReader(source.read_bytes()))
        header = parse_header((table.schema.metadata or {}).get(METADATA_KEY, _NO_HEADER).decode())
    except BadRow as bad:
        raise InputError(f"{source.path}, metadata {bad.column}: {bad.value!r}; expected {bad.expected}") from bad
    except (pa.ArrowException, OSError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{source.path}: not readable as Parquet ({text}); expected an intact file") from error
    known = (*_NEEDED, *_RAGGED, *OPTIONAL_KEYS)
    if not set(_NEEDED) <= set(table.column_names) <= set(known) or len(set(table.column_names)) < table.num_columns:
        expected = f"{', '.join(_NEEDED)} and, of {', '.join(known[3:])}, what the trace has"
        raise InputError(f"{source.path}: columns {', '.join(table.column_names)}; expected {expected}")
    return table, header


class _Columns:
    """A table's columns as whole numbers and lists of them. Raises InputError for columns of other types."""

    def __init__(self, source: Source, table: Any) -> None:
        self._pa = arrow()
        self._source = source
        self._table = table

    def needed(self, key: str) -> IntArray:
        """A column of integers, or of seconds as picoseconds, without any null."""
        is_null = self._column(key).is_null().to_numpy(zero_copy_only=False)
        if bool(is_null.any()):
            raise InputError(f"{self._source.path}, row {np.argmax(is_null)}, column {key}: null; expected a number")
        return self.numbers(key, 0)

    def numbers(self, key: str, default: int) -> IntArray:
        """A column of integers, or of seconds as picoseconds; `default` where it is null."""
        column = self._column(key)
        numbers = self._picoseconds(key, column) if key.endswith("_s") else self._integers(key, column)
        return np.where(column.is_null().to_numpy(zero_copy_only=False), default, numbers).astype(np.int64)

    def _column(self, key: str) -> Any:
        return self._table.column(key).combine_chunks()

    def lists(self, key: str) -> Ragged:
        """A column of lists of integers, or of pairs of them."""
        lists = self._checked_lists(key, self._column(key))
        values = lists.flatten()
        if key != "hash_ids":
            pairs = self._checked_lists(key, values)
            if bool((np.diff(self._offsets(pairs)) != 2).any()):
                raise self._wrong(key, pairs.type, "pairs of start_token and num_tokens")
            values = pairs.flatten()
        numbers = self._integers(key, values)
        return Ragged(numbers if key == "hash_ids" else numbers.reshape(-1, 2), self._offsets(lists))

    def _checked_lists(self, key: str, column: Any) -> Any:
        types = self._pa.types
        is_list = (
            types.is_list(column.type) or types.is_large_list(column.type) or types.is_fixed_size_list(column.type)
        )
        if not is_list or column.null_count:
            raise self._wrong(key, column.type, "a list of whole numbers (of pairs, for segments), never null")
        return column

    def _offsets(self, lists: Any) -> IntArray:
        lengths = self._pa.compute.list_value_length(lists).to_numpy(zero_copy_only=False)
        return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))

    def _integers(self, key: str, column: Any) -> IntArray:
        if not self._pa.types.is_integer(column.type):
            raise self._wrong(key, column.type, "whole numbers")
        numbers: IntArray = self._cast(key, column, self._pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
        return numbers

    def _picoseconds(self, key: str, column: Any) -> IntArray:
        types = self._pa.types
        if not (types.is_decimal(column.type) or types.is_integer(column.type)):
            raise self._wrong(key, column.type, f"seconds as decimals with up to {TIME_DIGITS} digits after the point")
        decimals = self._cast(key, column, self._pa.decimal128(38, TIME_DIGITS))
        halves = np.frombuffer(decimals.buffers()[1], dtype=np.int64)[2 * decimals.offset :].reshape(-1, 2)
        halves = halves[: len(decimals)]
        if bool((halves[:, 1] != halves[:, 0] >> 63)[decimals.is_valid().to_numpy(zero_copy_only=False)].any()):
            raise self._wrong(key, column.type, "times below 106 days (do they count from 1970?)")
        return halves[:, 0]

    def _cast(self, key: str, column: Any, kind: Any) -> Any:
        try:
            return column.cast(kind)
        except self._pa.ArrowException as error:
            raise self._wrong(key, column.type, f"values that fit {kind}") from error

    def _wrong(self, key: str, kind: Any, expected: str) -> InputError:
        return InputError(f"{self._source.path}, column {key}: {kind}; expected {expected}")


def _good_rows(source: Source, trace: Trace, bad_rows: BadRows) -> Trace:
    """The trace without failed calls, which have no prompt or no output tokens."""
    is_good = np.ones(trace.num_requests, dtype=np.bool_)
    for what, column in (("prompt", trace.num_prompt_tokens), ("output", trace.num_output_tokens)):
        for row in np.flatnonzero((column == 0) & is_good).tolist():
            expected = f"at least 1 {what} token (trace.on_error=skip leaves such rows out)"
            bad_rows.handle(source, None, BadRow(f"zero_{what}", f"num_{what}_tokens, row {row}", 0, expected))
            is_good[row] = False
    require_rows(source, int(is_good.sum()), bad_rows)
    return replace(trace.take(np.flatnonzero(is_good)), num_dropped=bad_rows.num_dropped())
