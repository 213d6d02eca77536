"""aiperf's multi-turn form of Mooncake JSON lines: turns of a session wait for the answer before them.

The first turn of a session has a `timestamp`, later ones the `delay` (ms) after the answer before them: our think time.
Prompts are whole, which `"context_mode": "message_array_with_responses"` says; an aiperf that does not know the key
takes them as additions to the conversation, and its prompts grow too long (`MooncakeTraceDatasetLoader`, aiperf main of
2026, knows it).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from core.errors import InputError
from traces.ragged import IntArray
from traces.readers.fields import PS_PER_MS
from traces.schema import Trace
from traces.statistics import conversations
from traces.writers import mooncake
from traces.writers.text import decimal_text, write_lines

NAME = "mooncake_sessions"
DESCRIPTION = "the same with session_id and delay, as aiperf takes them"
CARRIES = mooncake.CARRIES | {"session_id", "parent", "think_time_s"}
RESOLUTION_PS = mooncake.RESOLUTION_PS
CONTEXT_MODE = "message_array_with_responses"


def write(trace: Trace, file: BinaryIO) -> None:
    """Raises InputError for a trace without turns, or where one turn does not follow the one before it."""
    write_lines(file, _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    session = conversations(trace)
    parents = _parents(trace, session).tolist()
    think_ps = np.zeros(trace.num_requests, np.int64) if trace.think_time_ps is None else trace.think_time_ps
    rows = zip(
        session.tolist(), parents, trace.arrival_ps.tolist(), think_ps.tolist(), mooncake.members(trace), strict=True
    )
    for number, parent, arrival_ps, pause_ps, members in rows:
        key, time_ps = ("timestamp", arrival_ps) if parent < 0 else ("delay", max(0, pause_ps))
        head = f'"session_id": "{number}", "context_mode": "{CONTEXT_MODE}"'
        yield f'{{{head}, "{key}": {decimal_text(time_ps, PS_PER_MS)}, {members}}}'


def _parents(trace: Trace, session: IntArray) -> IntArray:
    """The parent of each row, once it is seen that each is the row before in its session."""
    if trace.parent is None:
        raise InputError(f"trace {trace.name!r} has no turns that wait for one another; expected --to mooncake")
    order = np.argsort(session, kind="stable")
    before = np.full(trace.num_requests, -1, dtype=np.int64)
    follows = session[order][1:] == session[order][:-1]
    before[order[1:][follows]] = order[:-1][follows]
    strays = trace.parent != before
    if strays.any():
        row = int(np.argmax(strays))
        raise InputError(
            f"trace {trace.name!r}, row {row}: waits for row {trace.parent[row]}; expected row {before[row]}, the one"
            " before it in its session (this format has no branches, and no second beginning of a session)"
        )
    return trace.parent
