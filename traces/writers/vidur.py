"""Vidur's trace CSV: seconds and lengths."""

from __future__ import annotations

from typing import BinaryIO

from traces.schema import Trace
from traces.writers.text import arrivals, csv_lines, write_lines

NAME = "vidur"
DESCRIPTION = "CSV: arrived_at (s), num_prefill_tokens, num_decode_tokens"
CARRIES = frozenset({"lengths", "origin"})
RESOLUTION_PS = 1


def write(trace: Trace, file: BinaryIO) -> None:
    header = "arrived_at,num_prefill_tokens,num_decode_tokens"
    write_lines(file, csv_lines(header, arrivals(trace), trace.num_prompt_tokens, trace.num_output_tokens))
