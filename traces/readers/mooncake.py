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

import numpy as np

from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.block_ids import hash_column
from traces.readers.fields import json_object
from traces.readers.mooncake_columns import BlockReader, Columns
from traces.readers.mooncake_row import RowParser
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
    parts = list(map(BlockReader(source, bad_rows, parse).read, source.line_blocks()))
    require_rows(source, sum(part.num_rows for part in parts), bad_rows)
    rows = Columns.joined(parts)
    has_content = len(rows.block_ids.values) > 0
    has_turns = bool((rows.parent >= 0).any())
    return Trace(
        name=source.name,
        arrival_ps=rows.arrival_ps,
        num_prompt_tokens=rows.num_prompt_tokens,
        num_output_tokens=rows.num_output_tokens,
        hash_block_tokens=block_tokens if has_content else None,
        hash_ids=hash_column(parse.filled(source, rows.block_ids, rows.num_prompt_tokens)) if has_content else None,
        session_id=_session_ids(rows.session),
        parent=rows.parent if has_turns else None,
        think_time_ps=rows.think_time_ps if has_turns else None,
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="Apache-2.0 if from kvcache-ai/Mooncake",
    ).sorted_by_arrival()


def _looks_like_row(line: str) -> bool:
    try:
        row = json_object(line)
    except BadRow:
        return False
    return any(keys <= row.keys() for keys in _PROMPTS) and "chat_id" not in row


def _usual_block_tokens(head: Head) -> int:
    return HASH_BLOCK_TOKENS if any('"hash_ids"' in line for line in head.lines) else TEXT_BLOCK_TOKENS


def _session_ids(sessions: IntArray) -> IntArray | None:
    """A row of no session is one by itself."""
    is_alone = sessions < 0
    if is_alone.all():
        return None
    numbers = sessions.copy()
    numbers[is_alone] = 1 + sessions.max() + np.arange(np.count_nonzero(is_alone))
    return numbers
