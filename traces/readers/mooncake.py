"""Mooncake traces (FAST 2025), JSON lines: milliseconds, and an id for every 512-token block of the prompt.

kvcache-ai/Mooncake, Apache-2.0; cite Mooncake (FAST 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traces.readers.fields import PS_PER_MS, block_ids, json_object, num_tokens, required, time_ps
from traces.readers.source import BadRow, BadRows, Head, Source, parse_rows
from traces.schema import Ragged, Trace

NAME = "mooncake"
DESCRIPTION = "JSON lines with timestamp (ms), input_length, output_length, hash_ids (512 tokens each)"
HASH_BLOCK_TOKENS = 512


class _Row(NamedTuple):
    arrival_ps: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: list[int]


def recognises(head: Head) -> bool:
    """Whether one of the first lines is a row of this format.

    Bailian's rows look alike, but name a chat, count seconds and have blocks of 16 tokens.
    """
    return any(_looks_like_row(line) for line in head.lines)


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin.

    A row without a timestamp arrives with the row before it in the file, and at 0 if it is the first.
    """
    rows = [row for _, row in parse_rows(source, source.numbered_lines(), _parse, bad_rows)]
    return Trace(
        name=source.name,
        arrival_ps=_arrivals_ps(rows),
        num_prompt_tokens=np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        hash_block_tokens=HASH_BLOCK_TOKENS,
        hash_ids=Ragged.of_ids([row.hash_ids for row in rows]),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="Apache-2.0, kvcache-ai/Mooncake",
    ).sorted_by_arrival()


def _looks_like_row(line: str) -> bool:
    try:
        row = json_object(line)
    except BadRow:
        return False
    return {"input_length", "output_length", "hash_ids"} <= row.keys() and "chat_id" not in row


def _parse(line: str) -> _Row:
    row = json_object(line)
    num_prompt_tokens = num_tokens("input_length", required(row, "input_length", "the prompt tokens"), "prompt")
    num_output_tokens = num_tokens("output_length", required(row, "output_length", "the output tokens"), "output")
    ids = required(row, "hash_ids", "an id for every 512 tokens of the prompt")
    timestamp = row.get("timestamp")
    return _Row(
        None if timestamp is None else time_ps("timestamp", timestamp, PS_PER_MS),
        num_prompt_tokens,
        num_output_tokens,
        block_ids("hash_ids", ids, num_prompt_tokens, HASH_BLOCK_TOKENS),
    )


def _arrivals_ps(rows: Sequence[_Row]) -> np.typing.NDArray[np.int64]:
    arrivals_ps = []
    latest_ps = 0
    for row in rows:
        latest_ps = latest_ps if row.arrival_ps is None else row.arrival_ps
        arrivals_ps.append(latest_ps)
    return np.array(arrivals_ps, dtype=np.int64)
