"""Mooncake traces (FAST 2025), JSON lines: milliseconds, and an id for every 512-token block of the prompt.

kvcache-ai/Mooncake, Apache-2.0; cite Mooncake (FAST 2025). aiperf (0.13; dataset type `mooncake_trace`) takes more
forms of it, which are read, too:

* no `timestamp`: the row arrives with the row before it in the file, and at 0 if it is the first;
* no `hash_ids`: nobody shares this prompt; `text_input` in place of `input_length`: the prompt itself;
* `session_id`: rows with the same one are turns. Each comes `delay` milliseconds after the answer before it (at once
  without; a turn with a timestamp and no delay comes at its time). Its prompt is all that went before in the session,
  the answers included, and then its own `input_length` tokens; with `"context_mode": "message_array_with_responses"`
  the row's prompt is whole. What a turn shares with the one before is counted in whole blocks of that one's prompt.

Blocks hold 512 tokens, as the paper's do, unless the caller says otherwise; 16 in a file whose rows name none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from traces.readers.bad_rows import BadRow, BadRows, parse_rows
from traces.readers.block_ids import hash_column
from traces.readers.chains import link_columns
from traces.readers.fields import json_object
from traces.readers.mooncake_row import Row, RowParser
from traces.readers.source import Head, Source
from traces.readers.texts import TEXT_BLOCK_TOKENS, Encode, tokenizer_for
from traces.schema import IntArray, Trace

NAME = "mooncake"
DESCRIPTION = (
    "JSON lines with timestamp (ms), input_length, output_length, hash_ids (512 tokens each), and aiperf's forms"
)
HASH_BLOCK_TOKENS = 512
_PROMPTS = ({"input_length", "hash_ids"}, {"input_length", "output_length"}, {"text_input"})


def recognises(head: Head) -> bool:
    """Whether one of the first lines is a row of this format.

    Bailian's rows look alike, but name a chat, count seconds and have blocks of 16 tokens.
    """
    return any(_looks_like_row(line) for line in head.lines)


def read(
    source: Source, bad_rows: BadRows, *, hash_block_tokens: int | None = None, encode: Encode | None = None
) -> Trace:
    """Read the trace; times keep the file's own origin. `encode` makes tokens of `text_input`."""
    block_tokens = hash_block_tokens or _usual_block_tokens(source.head)
    parse = RowParser(block_tokens, tokenizer_for(source, encode))
    rows = [row for _, row in parse_rows(source, source.numbered_lines(), parse, bad_rows)]
    has_content = any(row.block_ids is not None for row in rows)
    return Trace(
        name=source.name,
        arrival_ps=np.array([row.arrival_ps for row in rows], dtype=np.int64),
        num_prompt_tokens=np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        hash_block_tokens=block_tokens if has_content else None,
        hash_ids=hash_column([parse.filled(row) for row in rows]) if has_content else None,
        session_id=_session_ids(rows),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="Apache-2.0, kvcache-ai/Mooncake",
        **link_columns([row.link for row in rows]),  # type: ignore[arg-type]  # two of the columns
    ).sorted_by_arrival()


def _looks_like_row(line: str) -> bool:
    try:
        row = json_object(line)
    except BadRow:
        return False
    return any(keys <= row.keys() for keys in _PROMPTS) and "chat_id" not in row


def _usual_block_tokens(head: Head) -> int:
    return HASH_BLOCK_TOKENS if any('"hash_ids"' in line for line in head.lines) else TEXT_BLOCK_TOKENS


def _session_ids(rows: Sequence[Row]) -> IntArray | None:
    if all(row.session is None for row in rows):
        return None
    num_sessions = 1 + max(row.session for row in rows if row.session is not None)
    alone = iter(range(num_sessions, num_sessions + len(rows)))
    return np.array([next(alone) if row.session is None else row.session for row in rows], dtype=np.int64)
