"""kvtwin's own format, JSON lines: what `read_trace` gives back is the same trace, sharing included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

from traces.readers.own import DESCRIPTION, NAME
from traces.readers.own_header import NO_NOTES, header_of
from traces.readers.own_row import OPTIONAL_KEYS
from traces.schema import Trace
from traces.writers.text import decimal_text, write_lines

__all__ = ["CARRIES", "DESCRIPTION", "NAME", "RESOLUTION_PS", "write"]

_CONTENT = {"hash_ids", "prompt_segments", "output_segments"}
CARRIES = frozenset({"lengths", "origin", "times_of_turns", *_CONTENT, *OPTIONAL_KEYS})
RESOLUTION_PS = 1


def write(trace: Trace, file: BinaryIO, notes: Mapping[str, Any] = NO_NOTES) -> None:
    """`notes` (credit, how it was made, …) go into the header and are not read back."""
    write_lines(file, _lines(trace, notes))


def _lines(trace: Trace, notes: Mapping[str, Any]) -> Iterator[str]:
    yield json.dumps(header_of(trace, notes))
    for row in range(trace.num_requests):
        yield _row(trace, row)


def _row(trace: Trace, row: int) -> str:
    members = [f'"arrival_s":{decimal_text(int(trace.arrival_ps[row]))}']
    members.append(f'"num_prompt_tokens":{trace.num_prompt_tokens[row]}')
    members.append(f'"num_output_tokens":{trace.num_output_tokens[row]}')
    for key in ("hash_ids", "prompt_segments", "output_segments"):
        ragged = getattr(trace, key)
        if ragged is not None:
            members.append(f'"{key}":{json.dumps(ragged.row(row).tolist(), separators=(",", ":"))}')
    for key, optional in OPTIONAL_KEYS.items():
        column = getattr(trace, optional.column)
        if column is not None:
            members.append(f'"{key}":{_value(key, int(column[row]), optional.default)}')
    return "{" + ",".join(members) + "}"


def _value(key: str, value: int, default: int) -> str:
    if value == default < 0:
        return "null"
    return decimal_text(value) if key.endswith("_s") else str(value)
