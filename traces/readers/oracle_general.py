"""libCacheSim's binary traces, oracleGeneral: records of 24 bytes. How references become requests: `object_trace`.

Layout (cacheMon/libCacheSim, `oracleGeneralBin.h`): little-endian and packed, uint32 seconds, uint64 object, uint32
size, int64 number of the next reference to the object, or -1. The last is not read, but tells other files from this
format, which has no magic number; so a file is recognised only if its name says oracleGeneral, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from core.errors import InputError
from traces.ragged import IntArray
from traces.readers.arrivals import on_own_clock
from traces.readers.bad_rows import BadRows, require_rows
from traces.readers.csv_table import Rows
from traces.readers.object_stream import object_trace
from traces.readers.source import Head, Source
from traces.schema import Trace

NAME = "oracle_general"
DESCRIPTION = "libCacheSim's binary *.oracleGeneral"
_FILE_NAME = re.compile(r".*\.oracleGeneral(\.bin)?(\.gz|\.zst)?", re.IGNORECASE | re.DOTALL)
_RECORD = np.dtype([("time_s", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
Records = npt.NDArray[np.void]


def recognises(head: Head) -> bool:
    """Whether the file's name ends in oracleGeneral and its first records may be such."""
    records = np.frombuffer(head.bytes, dtype=_RECORD, count=len(head.bytes) // _RECORD.itemsize)
    is_plausible = len(records) > 0 and bool((records["next"] >= -1).all())
    return is_plausible and _FILE_NAME.fullmatch(head.name) is not None


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the trace; times keep the file's own origin if that is possible (see `on_own_clock`)."""
    parts = list(_columns(source))
    require_rows(source, len(parts), bad_rows)
    time_s, objects, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    rows = Rows((time_s, np.zeros_like(time_s), objects, sizes), np.arange(1, len(time_s) + 1))
    arrivals = on_own_clock(source, "time", rows, bad_rows)
    object_ids, sizes = arrivals.values
    return object_trace(source, bad_rows, arrivals.arrival_ps, object_ids, sizes)


def _columns(source: Source) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Seconds, objects and sizes of all records, a block of them at a time."""
    rest = b""
    num_records = 0
    for block in source.blocks():
        whole = (len(rest) + len(block)) // _RECORD.itemsize * _RECORD.itemsize
        content = rest + block
        records = np.frombuffer(content[:whole], dtype=_RECORD)
        rest = content[whole:]
        _check(source, records, num_records)
        num_records += len(records)
        if len(records):
            # Objects beyond 2^63 become negative here: still one number each.
            yield (
                records["time_s"].astype(np.int64),
                records["object"].astype(np.int64),
                records["size"].astype(np.int64),
            )
    if rest:
        what = f"{len(rest)} bytes after record {num_records}"
        raise InputError(f"{source.path}: {what}; expected records of {_RECORD.itemsize} bytes and nothing else")


def _check(source: Source, records: Records, num_before: int) -> None:
    is_bad = records["next"] < -1
    if is_bad.any():
        record = int(np.argmax(is_bad))
        where = f"{source.path}, record {num_before + record + 1}"
        expected = "-1 or the number of a later reference (is the file oracleGeneral?)"
        raise InputError(f"{where}, next_access_vtime: {records['next'][record]}; expected {expected}")
