"""Qwen-Bailian traces (ATC 2025), JSON lines: seconds, turns of chats, an id for every 16-token block of the prompt.

alibaba-edu/qwen-bailian-usagetraces-anon, Apache-2.0; cite "KVCache Cache in the Wild" (ATC 2025). `chat_id` names a
request and `parent_chat_id` the turn before it (-1: none); `input_length` and `hash_ids` cover the whole prompt,
history included. A request arrives when the trace says (open loop): how long its user thought is not known. An id is
the hash of one block's content; here, as in all traces, ids come to stand for a block and all before it. Whether a
partial last block has an id is not said: rows with and without one are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from traces.readers.bad_rows import BadRow, BadRows, parse_rows
from traces.readers.block_ids import NewIds, hash_column, whole_block_ids
from traces.readers.chains import Link, link_columns
from traces.readers.fields import PS_PER_S, json_object, num_tokens, required, time_ps, whole_number
from traces.readers.source import Head, Source
from traces.schema import IntArray, Ragged, Trace

NAME = "bailian"
DESCRIPTION = (
    "JSON lines with chat_id, parent_chat_id, timestamp (s), input_length, output_length, hash_ids (16 tokens)"
)
HASH_BLOCK_TOKENS = 16
_KEYS = {"chat_id", "timestamp", "input_length", "output_length"}


def recognises(head: Head) -> bool:
    """Whether one of the first lines is a row of this format."""
    return any(_looks_like_row(line) for line in head.lines)


def read(source: Source, bad_rows: BadRows, *, hash_block_tokens: int | None = None) -> Trace:
    """Read the trace; times keep the file's own origin. `type` becomes the column `category`."""
    parse = _RowParser(hash_block_tokens or HASH_BLOCK_TOKENS)
    rows = [row for _, row in parse_rows(source, source.numbered_lines(), parse, bad_rows)]
    links = _links(rows)
    category_names = tuple(dict.fromkeys(row.category for row in rows if row.category))
    return Trace(
        name=source.name,
        arrival_ps=np.array([row.arrival_ps for row in rows], dtype=np.int64),
        num_prompt_tokens=np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        hash_block_tokens=hash_block_tokens or HASH_BLOCK_TOKENS,
        hash_ids=hash_column(Ragged.of_arrays([row.block_ids for row in rows])),
        session_id=_session_ids(rows, links),
        category=_categories(rows, category_names),
        category_names=category_names,
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="Apache-2.0 if from alibaba-edu/qwen-bailian-usagetraces-anon",
        **link_columns(links),  # type: ignore[arg-type]  # two of the columns
    ).sorted_by_arrival()


class _Row(NamedTuple):
    chat_id: int
    parent_chat_id: int
    arrival_ps: int
    num_prompt_tokens: int
    num_output_tokens: int
    category: str
    block_ids: IntArray


class _RowParser:
    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._new_ids = NewIds()

    def __call__(self, line: str) -> _Row:
        values = json_object(line)
        num_prompt_tokens = num_tokens("input_length", required(values, "input_length", "the prompt tokens"), "prompt")
        num_output_tokens = num_tokens(
            "output_length", required(values, "output_length", "the output tokens"), "output"
        )
        ids: Sequence[int] = ()
        if "hash_ids" in values:
            ids = whole_block_ids("hash_ids", values["hash_ids"], num_prompt_tokens, self._block_tokens)
        return _Row(
            whole_number("chat_id", required(values, "chat_id", "a number"), least=0),
            whole_number("parent_chat_id", values.get("parent_chat_id", -1), least=-1),
            time_ps("timestamp", required(values, "timestamp", "seconds"), PS_PER_S),
            num_prompt_tokens,
            num_output_tokens,
            _category(values),
            self._new_ids.fill("input_length", ids, num_prompt_tokens, self._block_tokens),
        )


def _looks_like_row(line: str) -> bool:
    try:
        return json_object(line).keys() >= _KEYS
    except BadRow:
        return False


def _category(values: dict[str, Any]) -> str:
    category = values.get("type", "")
    if not isinstance(category, str):
        raise BadRow("bad_value", "type", category, "a text such as text, search, image or file")
    return category


def _categories(rows: Sequence[_Row], names: Sequence[str]) -> IntArray | None:
    if not names:
        return None
    codes = {name: code for code, name in enumerate(names)}
    return np.array([codes.get(row.category, -1) for row in rows], dtype=np.int64)


def _links(rows: Sequence[_Row]) -> list[Link]:
    """Turns by their chats. A turn whose chat before is not in the trace, or does not come before it, starts anew."""
    row_of_chat: dict[int, int] = {}
    links = []
    for row_index in np.argsort([row.arrival_ps for row in rows], kind="stable").tolist():
        row = rows[row_index]
        links.append((row_index, Link(row_of_chat.get(row.parent_chat_id, -1))))
        row_of_chat[row.chat_id] = row_index
    return [link for _, link in sorted(links)]


def _session_ids(rows: Sequence[_Row], links: Sequence[Link]) -> IntArray:
    """A session is a first turn and all that follow it, numbered in the order of first turns."""
    sessions = np.full(len(rows), -1, dtype=np.int64)
    num_sessions = 0
    for row_index in np.argsort([row.arrival_ps for row in rows], kind="stable").tolist():
        parent = links[row_index].parent
        sessions[row_index] = num_sessions if parent < 0 else sessions[parent]
        num_sessions += parent < 0
    return sessions
