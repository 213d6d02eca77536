"""Run folders: written whole or not at all, read back with one clear line when something is missing.

`summary.json` is written last and under its final name only when everything else is in place, so a folder that has
one is complete. Arrays hold no clock reading and no zip timestamp: the same run gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError
from core.metrics import RequestColumns
from core.whole_file import whole_file
from kvtwin.lazy_arrays import Arrays

SCHEMA = "kvtwin.run/1"
# What every reader of a summary may rely on.
_PARTS: Mapping[str, type] = {
    "kind": str,
    "config": dict,
    "labels": dict,
    "seed": int,
    "trace": dict,
    "metrics": dict,
    "interrupted": bool,
}
_LEVELS = ("num_referenced_blocks", "num_cached_blocks", "num_orphan_blocks")
STEP_COLUMNS = ("start_s", "duration_s", "num_evictions", *_LEVELS, *(f"{name}_after" for name in _LEVELS))
GAP_COLUMNS = ("gap_s", "multiplicity")


@dataclass(frozen=True, repr=False)
class Run:
    """One finished (or interrupted) run: its summary and its arrays. `path` is None for a run that was not written."""

    path: Path | None
    summary: dict[str, Any]
    requests: Arrays
    steps: Arrays
    gaps: Arrays

    def __repr__(self) -> str:
        """One line: the arrays have a row for each request and step."""
        outcomes = self.summary["metrics"].get("outcomes", {})
        counts = ", ".join(f"{number:,} {outcome}" for outcome, number in outcomes.items() if number)
        where = self.path or "not written"
        return f"<Run: {self.summary['kind']} of {self.summary['trace'].get('name')}: {counts}; {where}>"

    @property
    def folder(self) -> Path:
        """Where the run was written; raises InputError for one that was not."""
        if self.path is None:
            raise InputError("this run was not written to a folder; give `out` to keep it")
        return self.path

    @property
    def is_interrupted(self) -> bool:
        """Whether the run was stopped before its trace ended: its figures cover only a part."""
        return bool(self.summary.get("interrupted", False))

    def request_columns(self) -> RequestColumns:
        """The requests as the columns that metrics are computed from."""
        return RequestColumns.of(self.requests)


def in_memory(summary: Mapping[str, Any], requests: Arrays, steps: Arrays, gaps: Arrays) -> Run:
    """A run that leaves nothing on disk."""
    return Run(None, {"schema": SCHEMA, **summary}, requests, steps, gaps)


def claim_run_folder(root: Path, name: str, config: Mapping[str, Any]) -> Path:
    """Create and return `root/name/<id>`: a hash of the config and the first number not taken yet.

    Making the folder is what claims it, so two jobs of one second, or of two processes, never share one.
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:10]
    for number in itertools.count(1):
        path = root / name / f"{digest}-{number}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise AssertionError("unreachable: count() does not end")


def write_run(
    path: Path,
    summary: Mapping[str, Any],
    *,
    requests: Arrays,
    steps: Arrays,
    gaps: Arrays,
    files: Mapping[str, bytes] | None = None,
) -> Run:
    """Write a run folder and return what read_run would, with the very arrays that were given: they may be large.

    `files` are further members by name (`decisions.jsonl.gz`, …). A summary that an earlier run left in the folder
    goes first, so that a write cut short never looks complete. A run stopped by the user has "interrupted": true in
    its summary.
    """
    document = json_bytes({"schema": SCHEMA, **summary})
    arrays = {"requests.npz": requests, "steps.npz": steps, "gaps.npz": gaps}
    try:
        path.mkdir(parents=True, exist_ok=True)
        _write_members(path, arrays, {**(files or {}), "summary.json": document})
    except OSError as error:
        raise InputError(f"cannot write run folder {path}: {error.strerror or error}") from error
    run = Run(path, json.loads(document), requests, steps, gaps)
    _check_columns(run)
    return run


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` whole: a reader sees the old file or the new one, never a part. Makes missing folders."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content)


def read_run(path: Path) -> Run:
    """Read a run folder; raises InputError naming the folder and what it lacks."""
    summary = read_summary(path)
    run = Run(path, summary, *(_read_arrays(path / name) for name in ("requests.npz", "steps.npz", "gaps.npz")))
    _check_columns(run)
    return run


def read_summary(path: Path) -> dict[str, Any]:
    """The summary of a run folder alone; raises InputError as `read_run`."""
    if not path.is_dir():
        is_file = path.exists()
        raise InputError(f"{path} is a file; expected the folder of a run" if is_file else f"no run folder at {path}")
    file = path / "summary.json"
    if not file.exists():
        raise InputError(f"{path} is not a finished run: it has no summary.json{_runs_inside(path)}")
    summary = read_document(file, SCHEMA)
    lacking = [name for name, kind in _PARTS.items() if not isinstance(summary.get(name), kind)]
    if lacking:
        raise InputError(f"{file}: no proper {', '.join(lacking)}; expected a summary as a run writes it")
    return summary


def _runs_inside(path: Path) -> str:
    """The end of the message about a folder that is no run, where some are below it: one of a sweep, a validation."""
    files = [*path.glob("*/summary.json"), *path.glob("*/*/summary.json")]  # no deeper: it may be anybody's folder
    runs = sorted(file.parent for file in files)
    if not runs:
        return ""
    listed = ", ".join(map(str, runs[:3])) + (", …" if len(runs) > 3 else "")
    return f"; expected one of the {len(runs)} below it: {listed}" if len(runs) > 1 else f"; expected {listed}"


def read_document(file: Path, schema: str) -> dict[str, Any]:
    """A JSON document that says of which schema it is; raises InputError for a file that is none."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: not readable as JSON ({error})") from None
    found = document.get("schema") if isinstance(document, dict) else None
    if found != schema:
        family = schema.partition("/")[0]
        is_other_version = isinstance(found, str) and found.startswith(f"{family}/")
        hint = "; another version of kvtwin wrote it" if is_other_version else ""
        raise InputError(f"{file}: schema is {found!r}, expected {schema!r}{hint}")
    checked: dict[str, Any] = document
    return checked


def npz_bytes(arrays: Arrays) -> bytes:
    """The arrays as an npz whose bytes depend on nothing but names and values."""
    buffer = io.BytesIO()
    _write_npz(buffer, arrays)
    return buffer.getvalue()


def _write_npz(file: IO[bytes], arrays: Arrays) -> None:
    """Integers packed at the fastest level, times as they are: packing these takes a quarter off them for the time of
    all other columns together. zipfile dates such members 1980-01-01, so equal arrays give equal bytes.
    """
    with zipfile.ZipFile(file, "w") as archive:
        for name, column in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, column, allow_pickle=False)
            packing = zipfile.ZIP_STORED if column.dtype.kind == "f" else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), member.getbuffer(), packing, compresslevel=1)


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Strict JSON: a nan raises ValueError instead of writing a file that other readers refuse."""
    return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def _write_members(path: Path, arrays: Mapping[str, Arrays], files: Mapping[str, bytes]) -> None:
    """All under temporary names, then renamed in this order: the last one's presence says that the folder is whole."""
    temporaries = {name: path / f".{name}.{os.getpid()}.tmp" for name in (*arrays, *files)}
    try:
        for name, columns in arrays.items():
            with temporaries[name].open("wb") as file:
                _write_npz(file, columns)
        for name, content in files.items():
            temporaries[name].write_bytes(content)
        (path / "summary.json").unlink(missing_ok=True)
        for name, temporary in temporaries.items():
            os.replace(temporary, path / name)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise InputError(f"{path.parent} is half written: it has no {path.name}") from None
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not readable as npz ({error})") from None


def _check_columns(run: Run) -> None:
    try:
        RequestColumns.of(run.requests)
        _ = [run.steps[name] for name in STEP_COLUMNS], [run.gaps[name] for name in GAP_COLUMNS]
    except KeyError as error:
        raise InputError(f"{run.path}: column {error} is missing from its arrays") from None
