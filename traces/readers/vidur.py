"""Vidur traces, CSV: seconds, prefill and decode tokens, nothing on prefixes.

microsoft/vidur, `data/processed_traces` (MIT). Files of lengths alone (no `arrived_at`) are Vidur's as well: it draws
arrivals for them, here all requests arrive at 0. Other columns, such as `num_total_tokens`, `pd_ratio` or an index
without a name, are not read. Times were written by pandas, some with the noise of a float (5.8926549999999995): they
are rounded to the picosecond.
"""

from __future__ import annotations

import numpy as np

from traces.readers.arrivals import on_own_clock
from traces.readers.bad_rows import BadRows
from traces.readers.csv_columns import Column, Seconds, Tokens
from traces.readers.csv_table import CsvTable, header_names
from traces.readers.source import Head, Source
from traces.schema import Trace

NAME = "vidur"
DESCRIPTION = "CSV with arrived_at (s), num_prefill_tokens, num_decode_tokens"
_TIME = Column("arrived_at", Seconds())
_LENGTHS = (Column("num_prefill_tokens", Tokens("prompt")), Column("num_decode_tokens", Tokens("output")))


def recognises(head: Head) -> bool:
    """Whether the first line of a file names this format's lengths."""
    return {column.name for column in _LENGTHS} <= set(header_names(head.first_line))


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin if that is possible (see `on_own_clock`)."""
    table = CsvTable.with_header(source)
    if _TIME.name in table.names:
        timed = table.read((_TIME, *_LENGTHS), bad_rows)
        arrival_ps, lengths = on_own_clock(source, _TIME.name, timed, bad_rows)
    else:
        lengths = table.read(_LENGTHS, bad_rows).values
        arrival_ps = np.zeros(len(lengths[0]), dtype=np.int64)
    num_prompt_tokens, num_output_tokens = lengths
    return Trace(
        name=source.name,
        arrival_ps=arrival_ps,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
    ).sorted_by_arrival()
