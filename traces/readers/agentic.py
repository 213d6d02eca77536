"""Agentic coding sessions of kv-cache-tester, JSON: one session a file, or a folder of such files.

callanjfox/kv-cache-tester, Apache-2.0 (`docs/trace_replay_tester.md`). Times are seconds from the start of the session;
sessions of a folder start together. `hash_ids` are those of the whole blocks of 64 tokens: the partial block at the end
gets an id that nobody else has. They mean something within their file only (`hash_id_scope` "local", also where it is
not said) or in all files of the folder ("global").

A session is a closed loop: a request comes `think_time` after the answer to the one before it. See `agentic_session`
for what becomes of sub-agents, and of requests that are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import InputError
from traces.readers.agentic_session import Request, SessionReader
from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.block_ids import hash_column
from traces.readers.chains import link_columns
from traces.readers.documents import json_document, list_under, names
from traces.readers.fields import MAX_TOKENS, whole_number
from traces.readers.source import Head, Source
from traces.readers.unpacking import PACKED_SUFFIXES
from traces.schema import Ragged, Trace

NAME = "agentic"
DESCRIPTION = "JSON with block_size and requests (t, in, out, hash_ids), one session a file, or a folder of such files"


def recognises(head: Head) -> bool:
    """Whether a file starts like a session of this format."""
    return names(head, "{", "block_size", "requests")


def read(source: Source, bad_rows: BadRows) -> Trace:
    """Read one session."""
    requests, block_tokens = _requests([source], bad_rows)
    return _trace(source.name, requests, block_tokens, source.sha256, bad_rows)


def read_folder(folder: Path, bad_rows: BadRows) -> Trace:
    """Read all `*.json` files of a folder, packed or not, by their names; the digest is of names and digests."""
    endings = tuple(f".json{packed}" for packed in ("", *PACKED_SUFFIXES))
    sources = [Source(path) for path in sorted(folder.iterdir()) if path.name.endswith(endings)]
    if not sources:
        raise InputError(
            f"{folder}: cannot be read as a trace; expected a file, or a folder with agentic sessions (*.json)"
        )
    for source in sources:
        if not recognises(source.head):
            raise InputError(f"{source.path}: not an agentic session; expected a folder of nothing else: {DESCRIPTION}")
    requests, block_tokens = _requests(sources, bad_rows)
    digest = hashlib.sha256("".join(f"{source.path.name} {source.sha256}\n" for source in sources).encode())
    return _trace(folder.name, requests, block_tokens, digest.hexdigest(), bad_rows)


def _requests(sources: Sequence[Source], bad_rows: BadRows) -> tuple[list[Request], int]:
    """The requests of all files and the size of their blocks."""
    reader = None
    for session, source in enumerate(sources):
        document = json_document(source)
        block_tokens = _block_tokens(source, document)
        reader = reader or SessionReader(bad_rows, block_tokens)
        if block_tokens != reader.block_tokens:
            expected = f"{reader.block_tokens}, as in the files before it"
            raise InputError(f"{source.path}, key block_size: {block_tokens}; expected {expected}")
        scope = session if document.get("hash_id_scope", "local") == "local" else None
        reader.read(source, session, scope, list_under(source, document, "requests"))
    assert reader is not None
    require_rows(sources[0], len(reader.requests), bad_rows)
    return reader.requests, reader.block_tokens


def _block_tokens(source: Source, document: Any) -> int:
    """The size of a file's blocks, its scope checked along."""
    values = document if isinstance(document, dict) else {}
    scope = values.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise InputError(f"{source.path}, key hash_id_scope: {scope!r}; expected local or global")
    try:
        return whole_number("block_size", values.get("block_size"), least=1, most=MAX_TOKENS)
    except BadRow as bad:
        raise InputError(f"{source.path}, key block_size: {bad.value!r}; expected {bad.expected}") from bad


def _trace(name: str, requests: Sequence[Request], block_tokens: int, sha256: str, bad_rows: BadRows) -> Trace:
    trace = Trace(
        name=name,
        arrival_ps=np.array([request.arrival_ps for request in requests], dtype=np.int64),
        num_prompt_tokens=np.array([request.num_prompt_tokens for request in requests], dtype=np.int64),
        num_output_tokens=np.array([request.num_output_tokens for request in requests], dtype=np.int64),
        hash_block_tokens=block_tokens,
        hash_ids=hash_column(Ragged.of_arrays([request.block_ids for request in requests])),
        session_id=np.array([request.session for request in requests], dtype=np.int64),
        sha256=sha256,
        num_dropped=bad_rows.num_dropped(),
        licence="Apache-2.0 if from callanjfox/kv-cache-tester",
        **link_columns([request.link for request in requests]),  # type: ignore[arg-type]  # two of the columns
    ).sorted_by_arrival()
    # Sessions and sub-agents run side by side: that one file or list comes after another says nothing of time.
    return replace(trace, num_unsorted_rows=0)
