"""BurstGPT traces, CSV: seconds, request and response tokens, in version 2 the conversation; nothing on prefixes.

HPMLL/BurstGPT, CC-BY-4.0; cite Wang et al., arXiv 2401.17644. Calls that failed are rows with 0 response tokens, some
of them with 0 request tokens, too: bad rows (`zero_output`, `zero_prompt`). Not read: `Model`, `Total tokens`,
`Log Type`, and of version 2 (`BurstGPT_3.csv`, whose two columns stand after the first) `Elapsed time`, how long the
recorded service took. Its `Session ID` is empty in every row of `Log Type` API log; its times begin on day 225 and span
110 days, of which 64 bits of picoseconds hold 106: the rest are bad rows (`too_late`).
"""

from __future__ import annotations

from traces.readers.arrivals import on_own_clock
from traces.readers.bad_rows import BadRows
from traces.readers.csv_columns import Column, Labels, Seconds, Tokens, by_first_appearance
from traces.readers.csv_table import CsvTable, header_names
from traces.readers.source import Head, Source
from traces.schema import Trace

NAME = "burstgpt"
DESCRIPTION = "CSV with Timestamp (s), Request tokens, Response tokens, in version 2 Session ID"
_SESSION = "Session ID"
_COLUMNS = (
    Column("Timestamp", Seconds()),
    Column("Request tokens", Tokens("prompt")),
    Column("Response tokens", Tokens("output")),
)


def recognises(head: Head) -> bool:
    """Whether the first line of a file is this format's header, in any order."""
    return {column.name for column in _COLUMNS} <= set(header_names(head.first_line))


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin if that is possible (see `on_own_clock`).

    Sessions are numbered from 0 as they first appear; a row without one has -1.
    """
    table = CsvTable.with_header(source)
    session = (Column(_SESSION, Labels()),) if _SESSION in table.names else ()
    rows = on_own_clock(source, "Timestamp", table.read((*_COLUMNS, *session), bad_rows), bad_rows)
    num_prompt_tokens, num_output_tokens, *session_id = rows.values
    return Trace(
        name=source.name,
        arrival_ps=rows.arrival_ps,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        session_id=by_first_appearance(session_id[0]) if session_id else None,
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="CC-BY-4.0 if from HPMLL/BurstGPT",
    ).sorted_by_arrival()
