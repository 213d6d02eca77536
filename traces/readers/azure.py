"""Azure LLM inference traces (2023 and 2024), CSV: wall-clock time, prompt and output tokens, nothing on prefixes.

Microsoft Azure Public Dataset, CC-BY-4.0; cite Splitwise (ISCA 2024).
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

import numpy as np

from core.errors import InputError
from traces.readers.fields import INT64_MAX, num_tokens
from traces.readers.source import BadRow, BadRows, Head, Source, parse_rows
from traces.schema import Trace

NAME = "azure"
DESCRIPTION = "CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens"
_HEADER = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?(?:Z|\+00:00)?", re.ASCII)


def recognises(head: Head) -> bool:
    """Whether the first lines of a file are this format."""
    return bool(head.lines) and tuple(head.lines[0].strip().split(",")) == _HEADER


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; the earliest row arrives at 0."""
    lines = source.numbered_lines()
    next(lines, None)  # the header
    rows = [row for _, row in parse_rows(source, lines, _parse, bad_rows)]
    origin_ps = min(row[0] for row in rows)
    if max(row[0] for row in rows) - origin_ps > INT64_MAX:
        raise InputError(f"{source.path}: the timestamps span more than 106 days; expected less (is a date wrong?)")
    return Trace(
        name=source.name,
        arrival_ps=np.array([row[0] - origin_ps for row in rows], dtype=np.int64),
        num_prompt_tokens=np.array([row[1] for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row[2] for row in rows], dtype=np.int64),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="CC-BY-4.0, Microsoft Azure Public Dataset",
    ).sorted_by_arrival()


def _parse(line: str) -> tuple[int, int, int]:
    cells = line.split(",")
    if len(cells) != len(_HEADER):
        raise BadRow("malformed_row", f"{len(cells)} of {len(_HEADER)}", line, "three cells: " + ",".join(_HEADER))
    return (
        _wall_clock_ps(cells[0]),
        num_tokens("ContextTokens", _digits(cells[1]), "prompt"),
        num_tokens("GeneratedTokens", _digits(cells[2]), "output"),
    )


def _digits(cell: str) -> int | str:
    """The number, or the cell itself where it is none (so that the error shows it)."""
    text = cell.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else cell


def _wall_clock_ps(cell: str) -> int:
    """Picoseconds since the year 1: a Python integer, beyond 64 bits until the origin is taken off."""
    match = _TIMESTAMP.fullmatch(cell.strip())
    day = _day(match[1]) if match else None
    if match is None or day is None or not (int(match[2]) < 24 and int(match[3]) < 60 and int(match[4]) < 60):
        raise BadRow("bad_time", "TIMESTAMP", cell, "a time such as 2023-11-16 18:17:03.9799600 (UTC)")
    seconds = ((day * 24 + int(match[2])) * 60 + int(match[3])) * 60 + int(match[4])
    return seconds * 10**12 + int((match[5] or "0").ljust(12, "0"))


@lru_cache(maxsize=32)
def _day(text: str) -> int | None:
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return None
