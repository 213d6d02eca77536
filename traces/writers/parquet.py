"""kvtwin's own columns in a Parquet file (see `traces.parquet`): what `read_trace` gives back is the same trace."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

import numpy as np

from traces.parquet import DESCRIPTION, METADATA_KEY, NAME, TIME_DIGITS, arrow
from traces.readers.own_header import header_of
from traces.readers.own_row import OPTIONAL_KEYS
from traces.schema import IntArray, Ragged, Trace
from traces.writers.own import CARRIES, RESOLUTION_PS

__all__ = ["CARRIES", "DESCRIPTION", "NAME", "RESOLUTION_PS", "write"]

_TIME_PRECISION = 22  # digits in all: 64 bits of picoseconds have 19


def write(trace: Trace, file: BinaryIO) -> None:
    """Raises InputError where pyarrow is not installed."""
    pa = arrow()
    metadata = {METADATA_KEY: json.dumps(header_of(trace)).encode()}
    table = pa.table(_columns(pa, trace)).replace_schema_metadata(metadata)
    pa.parquet.write_table(table, file, compression="zstd")


def _columns(pa: Any, trace: Trace) -> dict[str, Any]:
    columns = {
        "arrival_s": _seconds(pa, trace.arrival_ps),
        "num_prompt_tokens": pa.array(trace.num_prompt_tokens),
        "num_output_tokens": pa.array(trace.num_output_tokens),
    }
    if trace.hash_ids is not None:
        columns["hash_ids"] = _lists(pa, trace.hash_ids, pa.array(trace.hash_ids.values))
    for key in ("prompt_segments", "output_segments"):
        segments: Ragged | None = getattr(trace, key)
        if segments is not None:
            pairs = pa.FixedSizeListArray.from_arrays(pa.array(segments.values.reshape(-1)), 2)
            columns[key] = _lists(pa, segments, pairs)
    for key, optional in OPTIONAL_KEYS.items():
        column: IntArray | None = getattr(trace, optional.column)
        if column is not None:
            columns[key] = _optional(pa, key, column, optional.default)
    return columns


def _optional(pa: Any, key: str, column: IntArray, default: int) -> Any:
    is_null = column == default
    if not key.endswith("_s"):
        return pa.array(column, mask=is_null)
    return pa.compute.if_else(pa.array(~is_null), _seconds(pa, column), None)


def _seconds(pa: Any, times_ps: IntArray) -> Any:
    """Decimals from whole picoseconds: 128 bits, of which the upper 64 repeat the sign."""
    halves = np.ascontiguousarray(np.column_stack((times_ps, times_ps >> 63)))
    kind = pa.decimal128(_TIME_PRECISION, TIME_DIGITS)
    return pa.Array.from_buffers(kind, len(times_ps), [None, pa.py_buffer(halves)])


def _lists(pa: Any, rows: Ragged, values: Any) -> Any:
    return pa.LargeListArray.from_arrays(pa.array(rows.offsets), values)
