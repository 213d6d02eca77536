"""Azure LLM inference CSV: wall-clock time, lengths. inference-perf takes it (and keeps six of the seven digits)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import BinaryIO

from traces.readers.fields import PS_PER_S
from traces.schema import Trace
from traces.writers.text import csv_lines, write_lines

NAME = "azure"
DESCRIPTION = "CSV: TIMESTAMP (wall clock), ContextTokens, GeneratedTokens"
CARRIES = frozenset({"lengths"})
RESOLUTION_PS = 10**5  # seven digits of a second
_START = datetime(2000, 1, 1)  # the format wants a date; it means nothing


def write(trace: Trace, file: BinaryIO) -> None:
    times = map(_wall_clock, trace.arrival_ps.tolist())
    header = "TIMESTAMP,ContextTokens,GeneratedTokens"
    write_lines(file, csv_lines(header, times, trace.num_prompt_tokens, trace.num_output_tokens))


def _wall_clock(arrival_ps: int) -> str:
    seconds, rest_ps = divmod(arrival_ps, PS_PER_S)
    return f"{_START + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}.{rest_ps // RESOLUTION_PS:07d}"
