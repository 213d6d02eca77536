"""LLMServingSim workloads, JSON lines: nanoseconds, single requests and agentic sessions, with or without token ids.

casys-kaist/LLMServingSim (`workloads/README.md`). A line is a request, or a session with `sub_requests`: the first
comes at the session's time, each of the others `tool_duration_ns` of the one before it after that one's end.
`input_tok_ids` tell what prompts share, in blocks of 16 tokens unless the caller says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.block_ids import NewIds, hash_column
from traces.readers.chains import Chain, Link, later_ps, link_columns
from traces.readers.fields import PS_PER_NS, json_object, num_tokens, required, time_ps, whole_numbers
from traces.readers.source import Head, Source
from traces.readers.texts import TEXT_BLOCK_TOKENS
from traces.schema import IntArray, Ragged, Trace

NAME = "llmservingsim"
DESCRIPTION = "JSON lines with input_toks, output_toks, arrival_time_ns, or sessions with sub_requests"


def recognises(head: Head) -> bool:
    """Whether one of the first lines is a row of this format."""
    return any(_looks_like_row(line) for line in head.lines)


def read(source: Source, bad_rows: BadRows, *, hash_block_tokens: int | None = None) -> Trace:
    """Read the trace; times keep the file's own origin."""
    block_tokens = hash_block_tokens or TEXT_BLOCK_TOKENS
    new_ids = NewIds()
    rows = list(_Reader(source, bad_rows, new_ids, block_tokens))
    require_rows(source, len(rows), bad_rows)
    num_prompt_tokens = np.array([row.num_prompt_tokens for row in rows], dtype=np.int64)
    block_ids = Ragged.of_arrays([row.block_ids for row in rows])
    has_content = len(block_ids.values) > 0
    has_sessions = any(row.link.parent >= 0 for row in rows)
    if has_content:
        block_ids = new_ids.filled(source, "input_toks", block_ids, num_prompt_tokens, block_tokens)
    return Trace(
        name=source.name,
        arrival_ps=np.array([row.arrival_ps for row in rows], dtype=np.int64),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        hash_block_tokens=block_tokens if has_content else None,
        hash_ids=hash_column(block_ids) if has_content else None,
        session_id=np.array([row.session for row in rows], dtype=np.int64) if has_sessions else None,
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="as casys-kaist/LLMServingSim says, if from there",
        **link_columns([row.link for row in rows]),  # type: ignore[arg-type]  # two of the columns
    ).sorted_by_arrival()


class _Row(NamedTuple):
    arrival_ps: int
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: IntArray  # none: nothing is known of the prompt
    session: int
    link: Link


class _Reader:
    """Iterates over the requests of a file, line by line; a line is a session of one request or of several."""

    def __init__(self, source: Source, bad_rows: BadRows, new_ids: NewIds, block_tokens: int) -> None:
        self._source = source
        self._bad_rows = bad_rows
        self._new_ids = new_ids
        self._block_tokens = block_tokens
        self._num_rows = 0

    def __iter__(self) -> Iterator[_Row]:
        for session, (line_number, line) in enumerate(self._source.numbered_lines()):
            try:
                values = json_object(line)
                arrival_ps = _time_ps("arrival_time_ns", required(values, "arrival_time_ns", "nanoseconds"))
                turns = _turns(values)
            except BadRow as bad:
                self._bad_rows.handle(self._source, line_number, bad)
                continue
            yield from self._session(session, line_number, arrival_ps, turns)

    def _session(
        self, session: int, line_number: int, arrival_ps: int, turns: Sequence[tuple[str, Any]]
    ) -> Iterator[_Row]:
        chain = Chain()
        think_time_ps = 0
        for place, values in turns:
            arrival_ps = later_ps(arrival_ps, think_time_ps)
            tool_ps = 0
            try:
                tool_ps = _time_ps(f"{place}tool_duration_ns", values.get("tool_duration_ns", 0))
                row = self._row(place, values, arrival_ps, session, chain.link(think_time_ps))
            except BadRow as bad:
                self._bad_rows.handle(self._source, line_number, bad)
                chain.leave_out(think_time_ps)
            else:
                yield row
                chain.keep(self._num_rows)
                self._num_rows += 1
            think_time_ps = tool_ps

    def _row(self, place: str, values: dict[str, Any], arrival_ps: int, session: int, link: Link) -> _Row:
        num_prompt_tokens = _count(place, values, "input_toks", "prompt")
        num_output_tokens = _count(place, values, "output_toks", "output")
        ids = np.zeros(0, dtype=np.int64)
        if values.get("input_tok_ids") is not None:
            key = f"{place}input_tok_ids"
            tokens = whole_numbers(key, values["input_tok_ids"])
            if len(tokens) != num_prompt_tokens:
                raise BadRow("token_mismatch", key, f"{len(tokens)} ids", f"{num_prompt_tokens}, as input_toks says")
            ids = self._new_ids.of_tokens(tokens, self._block_tokens)
        return _Row(arrival_ps, num_prompt_tokens, num_output_tokens, ids, session, link)


def _looks_like_row(line: str) -> bool:
    try:
        row = json_object(line)
    except BadRow:
        return False
    return "arrival_time_ns" in row and ({"input_toks", "output_toks"} <= row.keys() or "sub_requests" in row)


def _turns(values: dict[str, Any]) -> list[tuple[str, Any]]:
    """The requests of a line, each with the words that name its place in it."""
    if "sub_requests" not in values:
        return [("", values)]
    turns = values["sub_requests"]
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise BadRow("bad_value", "sub_requests", turns, "a list of requests")
    return [(f"sub_requests[{index}].", turn) for index, turn in enumerate(turns)]


def _count(place: str, values: dict[str, Any], key: str, what: str) -> int:
    if key not in values:
        raise BadRow("missing_value", f"{place}{key}", None, f"the {what} tokens")
    return num_tokens(f"{place}{key}", values[key], what)


def _time_ps(key: str, value: object) -> int:
    return time_ps(key, value, PS_PER_NS)
