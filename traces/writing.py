"""Write a trace in kvtwin's own format: what `read_trace` gives back is the same trace, sharing included."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traces.readers.fields import PS_PER_S
from traces.readers.own import SCHEMA
from traces.readers.own_row import OPTIONAL_KEYS
from traces.schema import Trace


def write_trace(trace: Trace, path: str | Path, notes: Mapping[str, Any] | None = None) -> None:
    """Write `trace` to `path`; `notes` (credit, how it was made, …) go into the header and are not read back.

    The file appears whole or not at all: it is written under a temporary name and renamed.
    """
    path = Path(path)
    lines = [_header(trace, notes or {}), *(_row(trace, row) for row in range(trace.num_requests))]
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    os.replace(temporary, path)


def _header(trace: Trace, notes: Mapping[str, Any]) -> str:
    header: dict[str, Any] = {"kvtwin": SCHEMA, "name": trace.name, "licence": trace.licence}
    if trace.hash_block_tokens is not None:
        header["hash_block_tokens"] = trace.hash_block_tokens
    if trace.recipe is not None:
        header["recipe"] = trace.recipe
    if notes:
        header["notes"] = notes
    return json.dumps(header)


def _row(trace: Trace, row: int) -> str:
    members = [f'"arrival_s":{_seconds(int(trace.arrival_ps[row]))}']
    members.append(f'"num_prompt_tokens":{trace.num_prompt_tokens[row]}')
    members.append(f'"num_output_tokens":{trace.num_output_tokens[row]}')
    for key in ("hash_ids", "prompt_segments", "output_segments"):
        ragged = getattr(trace, key)
        if ragged is not None:
            members.append(f'"{key}":{json.dumps(ragged.row(row).tolist(), separators=(",", ":"))}')
    for key, optional in OPTIONAL_KEYS.items():
        column = getattr(trace, optional.column)
        if column is not None:
            members.append(f'"{key}":{_value(key, int(column[row]), optional.default)}')
    return "{" + ",".join(members) + "}"


def _value(key: str, value: int, default: int) -> str:
    if value == default:
        return "null"
    return _seconds(value) if key.endswith("_s") else str(value)


def _seconds(time_ps: int) -> str:
    """Seconds as a decimal number, exactly."""
    seconds, rest_ps = divmod(time_ps, PS_PER_S)
    return f"{seconds}.{rest_ps:012d}".rstrip("0").rstrip(".")
