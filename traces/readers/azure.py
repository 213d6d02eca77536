"""Azure LLM inference traces (2023 and 2024), CSV: wall-clock time, prompt and output tokens, nothing on prefixes.

Microsoft Azure Public Dataset, CC-BY-4.0; cite Splitwise (ISCA 2024) for 2023, DynamoLLM (HPCA 2025) for 2024. The
files of 2023 have seven digits of a second, CRLF and no last newline; those of 2024 a zone (+00:00), and a fraction of
a second only where there is one.
"""

from __future__ import annotations

from traces.readers.arrivals import since_first
from traces.readers.bad_rows import BadRows
from traces.readers.csv_columns import Column, Tokens
from traces.readers.csv_table import CsvTable, header_names
from traces.readers.source import Head, Source
from traces.readers.wall_clock import WallClock
from traces.schema import Trace

NAME = "azure"
DESCRIPTION = "CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens"
_COLUMNS = (
    Column("TIMESTAMP", WallClock()),
    Column("ContextTokens", Tokens("prompt")),
    Column("GeneratedTokens", Tokens("output")),
)


def recognises(head: Head) -> bool:
    """Whether the first line of a file is this format's header, in any order."""
    return {column.name for column in _COLUMNS} <= set(header_names(head.first_line))


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; the earliest row arrives at 0."""
    table = CsvTable.with_header(source)
    rows = since_first(source, "TIMESTAMP", table.read(_COLUMNS, bad_rows), bad_rows)
    num_prompt_tokens, num_output_tokens = rows.values
    return Trace(
        name=source.name,
        arrival_ps=rows.arrival_ps,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="CC-BY-4.0 if from the Microsoft Azure Public Dataset",
    ).sorted_by_arrival()
