"""The readable decision log of a run folder, in the fields of the recorded logs that `kvtwin parity` reads."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from typing import Any

from core.decision_log import DecisionLog, Event

DECISIONS_FILE = "decisions.jsonl.gz"

_PER_REQUEST = {
    Event.CHUNK: "sched",
    Event.ADMIT: "hit",
    Event.RESUME: "hit",
    Event.FINISH: "fin",
    Event.PREEMPT: "preempt",
    Event.CANCEL: "abort",
    Event.REJECT: "reject",
}
_BLOCKS = {
    Event.TOUCH: "touch",
    Event.ALLOC: "alloc",
    Event.FREE: "free_blocks",
    Event.SWAP_OUT: "swap_out",
    Event.SWAP_IN: "swap_in",
    Event.COPY: "copy",
    Event.MOVE: "move",
}
_BARE_BLOCKS = {Event.EVICT: "evict", Event.CACHE: "cache"}


def decisions_jsonl(log: DecisionLog) -> bytes:
    """The decisions as gzipped JSON lines, one a step that decided anything; the same log gives the same bytes.

    `sched` lists admissions and prompt chunks only, since a running sequence that decodes gets one token in every step.
    """
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as archive:
        fields: dict[str, Any] = {}
        for step, event, request_id, value in log.rows().tolist():
            if fields.get("t") != step:
                if fields:
                    archive.write(_line(fields))
                fields = {"t": step}
            _add(fields, Event(event), request_id, value)
        if fields:
            archive.write(_line(fields))
    return buffer.getvalue()


def _add(fields: dict[str, Any], event: Event, request_id: int, value: int) -> None:
    if event in _PER_REQUEST:
        fields.setdefault(_PER_REQUEST[event], []).append([request_id, value])
    elif event in _BARE_BLOCKS:
        fields.setdefault(_BARE_BLOCKS[event], []).append(value)
    else:
        rows = fields.setdefault(_BLOCKS[event], [])
        if rows and rows[-1][0] == request_id:
            rows[-1][1].append(value)
        else:
            rows.append([request_id, [value]])


def _line(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, separators=(",", ":")) + "\n").encode()
