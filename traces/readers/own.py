"""kvtwin's own format, JSON lines: a header `{"kvtwin": "trace/1", "name": …, "licence": …}`, then an object a request.

Keys of a request: `arrival_s`, `num_prompt_tokens`, `num_output_tokens` (the counts may be left out where segments tell
them); optional `hash_ids` (with `hash_block_tokens` in the header), `prompt_segments` and `output_segments` (lists of
[start_token, num_tokens]), `session_id`, `parent` (number of an earlier request of this file, from 0), `think_time_s`,
`priority`, `tenant`, `hash_salt`, `num_samples`, `cancel_after_s`, `deadline_s` (for the last token, from arrival),
`category` (an index into the header's `category_names`). Times are seconds, exact to the picosecond; `null` stands for
"none". A generated trace has its `recipe` in the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from core.errors import InputError
from traces.readers.bad_rows import BadRow, BadRows, parse_rows, require_rows
from traces.readers.fields import json_object
from traces.readers.own_header import Header, parse_header
from traces.readers.own_row import OPTIONAL_KEYS, Row, RowParser
from traces.readers.source import Head, Source
from traces.schema import Ragged, Trace

NAME = "kvtwin"
DESCRIPTION = 'JSON lines that start with the header {"kvtwin": "trace/1"}'


def recognises(head: Head) -> bool:
    """Whether the first line of a file is this format's header."""
    try:
        return "kvtwin" in json_object(head.first_line)
    except BadRow:
        return False


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin."""
    lines = source.numbered_lines()
    header = _header(source, next(lines, (1, "")))
    parsed = parse_rows(source, lines, RowParser(header.hash_block_tokens), bad_rows)
    rows = _linked(source, parsed, bad_rows)
    content = rows[0].content
    return Trace(
        name=header.name or source.name,
        arrival_ps=np.array([row.arrival_ps for row in rows], dtype=np.int64),
        num_prompt_tokens=np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        hash_block_tokens=header.hash_block_tokens,
        hash_ids=Ragged.of_ids([row.hash_ids for row in rows]) if "hash_ids" in content else None,
        prompt_segments=_segments_column(rows, "prompt_segments"),
        output_segments=_segments_column(rows, "output_segments"),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence=header.licence,
        category_names=header.category_names,
        recipe=header.recipe,
        **_optional_columns(rows),
    ).sorted_by_arrival()


def _header(source: Source, numbered_line: tuple[int, str]) -> Header:
    line_number, line = numbered_line
    try:
        return parse_header(line)
    except BadRow as bad:
        raise InputError(f"{source.path}, line {line_number} (the header), key {bad.describe()}") from bad


def _linked(source: Source, parsed: Sequence[tuple[int, Row]], bad_rows: BadRows) -> list[Row]:
    """The rows with `parent` as index into the result; a row whose parent was left out becomes a root."""
    if not any("parent" in row.optional for _, row in parsed):
        return [row for _, row in parsed]
    rows: list[Row] = []
    new_index: dict[int, int] = {}
    for line_number, row in parsed:
        try:
            linked = _link(row, new_index, rows)
        except BadRow as bad:
            bad_rows.handle(source, line_number, bad)
            continue
        new_index[row.number] = len(rows)
        rows.append(linked)
    require_rows(source, len(rows), bad_rows)
    return rows


def _link(row: Row, new_index: dict[int, int], rows: Sequence[Row]) -> Row:
    parent = row.optional.get("parent", -1)
    if parent == -1:
        return row
    if parent >= row.number:
        raise BadRow("bad_parent", "parent", parent, f"an earlier request, below {row.number}")
    if parent not in new_index:
        orphaned = {key: -1 for key in ("parent", "think_time_s") if key in row.optional}
        return row._replace(optional={**row.optional, **orphaned})
    if rows[new_index[parent]].arrival_ps > row.arrival_ps:
        raise BadRow("bad_parent", "parent", parent, "a request that arrives no later than this one")
    return row._replace(optional={**row.optional, "parent": new_index[parent]})


def _segments_column(rows: Sequence[Row], key: str) -> Ragged | None:
    return Ragged.of_segments([getattr(row, key) for row in rows]) if key in rows[0].content else None


def _optional_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """The columns of the optional keys that any row has, with the default where a row lacks it."""
    present = {key for row in rows for key in row.optional}
    return {
        optional.column: np.array([row.optional.get(key, optional.default) for row in rows], dtype=np.int64)
        for key, optional in OPTIONAL_KEYS.items()
        if key in present
    }
