"""libCacheSim's CSV traces: seconds, an object, its size. How references become requests: `object_trace`.

Layout: cacheMon/libCacheSim, `data/*.csv` and the output of its `tracePrint` (`# time, object, size`). The columns may
stand in any order and go by the names below; a file without header (`trace.format=libcachesim_csv` by name) is time,
object, size, as in libCacheSim's `time-col=1, obj-id-col=2, obj-size-col=3`. Other columns, such as the operation and
`next_access_vtime`, are not read. Objects are names of any kind: see `ObjectIds`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.errors import InputError
from traces.readers.arrivals import on_own_clock
from traces.readers.bad_rows import BadRows
from traces.readers.csv_columns import Column, Kind, ObjectIds, Seconds, WholeNumber
from traces.readers.csv_table import CsvTable, header_names
from traces.readers.object_stream import object_trace
from traces.readers.source import Head, Source
from traces.schema import Trace

NAME = "libcachesim_csv"
DESCRIPTION = "CSV with time (s), object or obj_id, size"
_TIME = ("time", "timestamp", "clock_time", "real_time")
_OBJECT = ("object", "obj_id", "object_id", "lbn")
_SIZE = ("size", "obj_size", "object_size")
_WITHOUT_HEADER = ("time", "object", "size")


def recognises(head: Head) -> bool:
    """Whether the first line of a file names a time and an object."""
    names = header_names(head.first_line)
    return bool(_called(names, _TIME) and _called(names, _OBJECT))


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin if that is possible (see `on_own_clock`)."""
    table = _table(source)
    columns = [
        _column(source, table.names, _TIME, Seconds()),
        _column(source, table.names, _OBJECT, ObjectIds()),
    ]
    if _called(table.names, _SIZE):
        columns.append(_column(source, table.names, _SIZE, WholeNumber()))
    rows = on_own_clock(source, columns[0].name, table.read(columns, bad_rows), bad_rows)
    object_ids, *size = rows.values
    sizes = size[0] if size else np.ones(1, dtype=np.int64)
    return object_trace(source, bad_rows, rows.arrival_ps, object_ids, sizes)


def _table(source: Source) -> CsvTable:
    names = header_names(source.head.first_line)
    if names and names[0].replace(".", "", 1).isdecimal():
        return CsvTable(source, [*_WITHOUT_HEADER, *map(str, range(3, len(names)))][: len(names)], source.line_blocks())
    return CsvTable.with_header(source)


def _column(source: Source, names: Sequence[str], aliases: Sequence[str], kind: Kind) -> Column:
    called = _called(names, aliases)
    if not called:
        where = f"{source.path}, header {','.join(names)[:60]!r}"
        raise InputError(f"{where}: no column {aliases[0]}; expected one of {', '.join(aliases)}")
    return Column(called, kind)


def _called(names: Sequence[str], aliases: Sequence[str]) -> str:
    """The first column that goes by one of `aliases`, as the header spells it; empty if none does."""
    return next((name for name in names if name.lstrip("# ").lower().replace("-", "_") in aliases), "")
