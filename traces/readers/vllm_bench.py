"""Results of `vllm bench serve --save-result --save-detailed`, JSON: lengths and start times, nothing on prefixes.

vLLM 0.33 (`vllm/benchmarks/serve.py`). `start_times` are seconds of a clock with an arbitrary origin: the earliest
request arrives at 0. A failed request has a text under `errors` and no output.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any, NamedTuple

import numpy as np

from core.errors import InputError
from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.documents import json_document, list_under, names
from traces.readers.fields import INT64_MAX, PS_PER_S, num_tokens
from traces.readers.source import Head, Source
from traces.schema import Trace

NAME = "vllm_bench"
DESCRIPTION = "the result JSON of vllm bench serve --save-detailed"

_LATEST_S = 10**10  # of a clock that counts from boot, or from 1970


def recognises(head: Head) -> bool:
    """Whether a file starts like a detailed result."""
    return names(head, "{", "input_lens", "output_lens")


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read the requests of a run."""
    document = json_document(source)
    rows = []
    for index, values in enumerate(_columns(source, document)):
        try:
            rows.append(_row(index, *values))
        except BadRow as bad:
            bad_rows.handle(source, None, bad)
    require_rows(source, len(rows), bad_rows)
    origin_ps = min(row.start_ps for row in rows)
    if max(row.start_ps for row in rows) - origin_ps > INT64_MAX:
        raise InputError(f"{source.path}: the requests span more than 106 days; expected less (is a time wrong?)")
    return Trace(
        name=source.name,
        arrival_ps=np.array([row.start_ps - origin_ps for row in rows], dtype=np.int64),
        num_prompt_tokens=np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        num_output_tokens=np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
    ).sorted_by_arrival()


class _Row(NamedTuple):
    start_ps: int
    num_prompt_tokens: int
    num_output_tokens: int


def _columns(source: Source, document: Any) -> list[tuple[Any, ...]]:
    """Input length, output length, start and error of every request."""
    columns = {key: list_under(source, document, key) for key in ("input_lens", "output_lens", "start_times")}
    num_requests = len(columns["input_lens"])
    columns["errors"] = document.get("errors") or [""] * num_requests
    for key, column in columns.items():
        if not isinstance(column, list) or len(column) != num_requests:
            expected = f"a list of {num_requests}, as input_lens has"
            raise InputError(f"{source.path}, key {key}: expected {expected}")
    return list(zip(*columns.values(), strict=True))


def _row(index: int, num_prompt: object, num_output: object, start: object, error: object) -> _Row:
    if error:
        raise BadRow(
            "failed_request", f"errors[{index}]", error, "no error (trace.on_error=skip leaves failed requests out)"
        )
    return _Row(
        _clock_ps(f"start_times[{index}]", start),
        num_tokens(f"input_lens[{index}]", num_prompt, "prompt"),
        num_tokens(f"output_lens[{index}]", num_output, "output"),
    )


def _clock_ps(key: str, value: object) -> int:
    """A clock's reading to the nearest picosecond: it has more digits than meaning. Machines run for years."""
    if type(value) not in (int, Decimal) or not 0 <= Decimal(str(value)) <= _LATEST_S:
        raise BadRow("bad_time", key, value, f"seconds from 0 to {_LATEST_S}")
    return int((Decimal(str(value)) * PS_PER_S).to_integral_value(ROUND_HALF_EVEN))
