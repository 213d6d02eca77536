"""Per-request records of aiperf (`profile_export.jsonl`), JSON lines: lengths and start times, nothing on prefixes.

aiperf 0.13 (`docs/tutorials/working-with-profile-exports.md`). `request_start_ns` are nanoseconds since 1970: the
earliest request arrives at 0. Failed requests have an `error` and no lengths; those of the warm-up are not part of the
workload.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from core.errors import InputError
from traces.readers.bad_rows import BadRow, BadRows, parse_rows
from traces.readers.fields import INT64_MAX, PS_PER_NS, json_object, num_tokens, required, whole_number
from traces.readers.source import Head, Source
from traces.schema import Trace

NAME = "aiperf_records"
DESCRIPTION = "aiperf's profile_export.jsonl: JSON lines with metadata.request_start_ns and metrics"
_SKIP = "(trace.on_error=skip leaves such rows out)"


def recognises(head: Head) -> bool:
    """Whether one of the first lines is a record."""
    return any(_looks_like_record(line) for line in head.lines)


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the requests of a run."""
    rows = [row for _, row in parse_rows(source, source.numbered_lines(), _parse, bad_rows)]
    origin_ns = min(row.start_ns for row in rows)
    if (max(row.start_ns for row in rows) - origin_ns) * PS_PER_NS > INT64_MAX:
        raise InputError(f"{source.path}: the requests span more than 106 days; expected less (is a time wrong?)")
    return Trace(
        name=source.name,
        arrival_ps=np.array([(row.start_ns - origin_ns) * PS_PER_NS for row in rows], dtype=np.int64),
        num_prompt_tokens=np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
    ).sorted_by_arrival()


class _Row(NamedTuple):
    start_ns: int
    num_prompt_tokens: int
    num_output_tokens: int


def _looks_like_record(line: str) -> bool:
    try:
        row = json_object(line)
    except BadRow:
        return False
    return {"metadata", "metrics"} <= row.keys() and isinstance(row["metadata"], dict)


def _parse(line: str) -> _Row:
    row = json_object(line)
    metadata = _object(row, "metadata")
    if row.get("error"):
        raise BadRow("failed_request", "error", row["error"], f"no error {_SKIP}")
    phase = metadata.get("benchmark_phase", "profiling")
    if phase != "profiling":
        raise BadRow("warm_up", "metadata.benchmark_phase", phase, f"profiling {_SKIP}")
    metrics = _object(row, "metrics")
    start_ns = required(metadata, "request_start_ns", "nanoseconds since 1970")
    return _Row(
        whole_number("metadata.request_start_ns", start_ns, least=0),
        _tokens(metrics, "input_sequence_length", "prompt"),
        _tokens(metrics, "output_sequence_length", "output"),
    )


def _object(row: dict[str, Any], key: str) -> dict[str, Any]:
    value = row.get(key)
    if not isinstance(value, dict):
        raise BadRow("malformed_row", key, value, "an object")
    return value


def _tokens(metrics: dict[str, Any], metric: str, what: str) -> int:
    key = f"metrics.{metric}.value"
    entry = metrics.get(metric)
    if not isinstance(entry, dict) or "value" not in entry:
        raise BadRow("missing_value", key, None, f"the {what} tokens")
    value = entry["value"]
    is_whole = isinstance(value, Decimal) and value.is_finite() and value == value.to_integral_value()
    return num_tokens(key, int(value) if is_whole and value < 2**63 else value, what)
