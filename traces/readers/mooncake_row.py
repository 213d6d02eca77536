"""One row of a Mooncake trace, in its original form or in one of those that aiperf takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from traces.readers.bad_rows import BadRow
from traces.readers.block_ids import NewIds
from traces.readers.chains import Chain, Link, later_ps
from traces.readers.fields import PS_PER_MS, block_ids, num_tokens, required, time_ps
from traces.readers.source import Source
from traces.readers.texts import Encode, encoded
from traces.schema import IntArray, Ragged

WHOLE_CONTEXT = "message_array_with_responses"
ONLY_WHAT_IS_NEW = "deltas_without_responses"


class Row(NamedTuple):
    arrival_ps: int
    num_prompt_tokens: int
    num_output_tokens: int
    block_ids: IntArray  # none: nothing is known of the prompt
    session: int  # -1: none
    link: Link


@dataclass
class _Session:
    """What the next turn of a session builds on."""

    number: int
    chain: Chain = field(default_factory=Chain)
    arrival_ps: int = 0
    num_tokens: int = 0  # prompt and answer of the turn before
    whole_block_ids: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


class RowParser:
    """Parses one row after the other; turns of a session lean on the ones before them."""

    def __init__(self, block_tokens: int, encode: Encode) -> None:
        self.block_tokens = block_tokens
        self._encode = encode
        self._new_ids = NewIds()
        self._sessions: dict[str, _Session] = {}
        self._num_rows = 0
        self._latest_ps = 0  # arrival of the row before, which one without a timestamp shares

    def __call__(self, values: dict[str, Any]) -> Row:
        session = self._session(values)
        try:
            row = self._row(values) if session is None else self._turn(values, session)
        except BadRow:
            if session is not None:
                session.chain.leave_out(_delay_ps(values))
            raise
        self._num_rows += 1
        return row

    def pass_over(self, num_rows: int, arrival_ps: int) -> None:
        """So many rows, which are no turns, were read otherwise; the last of them arrives then."""
        self._num_rows += num_rows
        self._latest_ps = arrival_ps

    def filled(self, source: Source, block_ids: Ragged, num_prompt_tokens: IntArray) -> Ragged:
        """The rows' block ids; where nothing is known of a prompt, ids that nobody else has."""
        return self._new_ids.filled(source, "input_length", block_ids, num_prompt_tokens, self.block_tokens)

    def _session(self, values: dict[str, Any]) -> _Session | None:
        key = values.get("session_id")
        if key is None:
            return None
        if not isinstance(key, str):
            raise BadRow("bad_value", "session_id", key, "a text")
        return self._sessions.setdefault(key, _Session(len(self._sessions)))

    def _row(self, values: dict[str, Any]) -> Row:
        num_prompt_tokens, ids = self._prompt(values)
        num_output_tokens = _num_output_tokens(values)
        return Row(self._arrival_ps(values), num_prompt_tokens, num_output_tokens, ids, -1, Link())

    def _turn(self, values: dict[str, Any], session: _Session) -> Row:
        num_prompt_tokens, ids = self._prompt(values)
        num_output_tokens = _num_output_tokens(values)
        if not _has_whole_context(values):
            ids = ids if session.chain.last_row < 0 else session.whole_block_ids
            num_prompt_tokens += session.num_tokens
        key = "text_input" if "text_input" in values else "input_length"
        filled = self._new_ids.fill(key, ids, num_prompt_tokens, self.block_tokens)
        is_first = session.chain.last_row < 0
        arrival_ps, think_time_ps = (self._arrival_ps(values), -1) if is_first else _turn_times_ps(values, session)
        link = session.chain.link(think_time_ps)
        session.chain.keep(self._num_rows)
        session.arrival_ps = arrival_ps
        session.num_tokens = num_prompt_tokens + num_output_tokens
        session.whole_block_ids = filled[: num_prompt_tokens // self.block_tokens]
        return Row(arrival_ps, num_prompt_tokens, num_output_tokens, filled, session.number, link)

    def _arrival_ps(self, values: dict[str, Any]) -> int:
        timestamp_ps = _timestamp_ps(values)
        self._latest_ps = self._latest_ps if timestamp_ps is None else timestamp_ps
        return self._latest_ps

    def _prompt(self, values: dict[str, Any]) -> tuple[int, IntArray]:
        """Tokens of the prompt as the row has it, and their block ids."""
        if "messages" in values or "payload" in values:
            key = "messages" if "messages" in values else "payload"
            raise BadRow("unsupported_row", key, values[key], "input_length or text_input: a chat needs its template")
        if "text_input" in values:
            tokens = encoded("text_input", values["text_input"], self._encode)
            num_tokens("text_input", len(tokens), "prompt")
            return len(tokens), self._new_ids.of_tokens(tokens, self.block_tokens)
        count = num_tokens("input_length", required(values, "input_length", "the prompt tokens"), "prompt")
        if values.get("hash_ids") is None:
            return count, np.zeros(0, dtype=np.int64)
        return count, np.array(block_ids("hash_ids", values["hash_ids"], count, self.block_tokens), dtype=np.int64)


def _num_output_tokens(values: dict[str, Any]) -> int:
    expected = "the output tokens (aiperf leaves them to the server, a replay cannot)"
    return num_tokens("output_length", required(values, "output_length", expected), "output")


def _timestamp_ps(values: dict[str, Any]) -> int | None:
    timestamp = values.get("timestamp")
    return None if timestamp is None else time_ps("timestamp", timestamp, PS_PER_MS)


def _delay_ps(values: dict[str, Any]) -> int:
    """The delay of a turn that is left out, 0 where it tells none."""
    try:
        return time_ps("delay", values.get("delay", 0), PS_PER_MS)
    except BadRow:
        return 0


def _turn_times_ps(values: dict[str, Any], session: _Session) -> tuple[int, int]:
    """Arrival and think time of a later turn. Without a timestamp it comes `delay` after the answer before it."""
    timestamp_ps = _timestamp_ps(values)
    if timestamp_ps is not None and timestamp_ps < session.arrival_ps:
        raise BadRow("bad_time", "timestamp", values["timestamp"], "no earlier than the turn before of its session")
    delay = values.get("delay")
    if delay is None and timestamp_ps is not None:
        return timestamp_ps, -1
    think_time_ps = 0 if delay is None else time_ps("delay", delay, PS_PER_MS)
    return later_ps(session.arrival_ps, think_time_ps) if timestamp_ps is None else timestamp_ps, think_time_ps


def _has_whole_context(values: dict[str, Any]) -> bool:
    """Whether a turn's prompt is all of it; by aiperf's default it is only what comes after the answer before."""
    mode = values.get("context_mode", ONLY_WHAT_IS_NEW)
    if mode not in (WHOLE_CONTEXT, ONLY_WHAT_IS_NEW):
        raise BadRow("unsupported_row", "context_mode", mode, f"{ONLY_WHAT_IS_NEW} or {WHOLE_CONTEXT}")
    return bool(mode == WHOLE_CONTEXT)
