"""The folder of a run: made before the run, so that nobody waits for results that cannot be written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.errors import InputError
from core.whole_file import missing_folders, remove_empty
from kvtwin.store import claim_run_folder


@contextmanager
def run_folder(config: Mapping[str, Any]) -> Iterator[Path]:
    """`out` of a resolved configuration, or runs/<name>/<id>; gone again, with parents made for it, if it stays empty.

    Raises InputError where no folder can be made, or where `out` holds anything: a run never overwrites another.
    """
    out = config["out"]
    wanted = Path("runs") / config["name"] if out is None else Path(out).expanduser()
    made = missing_folders(wanted / "summary.json")
    try:
        folder = claim_run_folder(Path("runs"), config["name"], config) if out is None else _claimed(wanted)
    except OSError as error:
        remove_empty(made)
        raise InputError(f"cannot make the run folder {wanted}: {_why(error)}") from None
    try:
        yield folder
    finally:
        remove_empty([folder, *made] if out is None else made)


def _claimed(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise InputError(f"out={folder}: the folder is not empty; expected a new one, so that no run is overwritten")
    if not os.access(folder, os.W_OK):
        raise InputError(f"out={folder}: the folder cannot be written to")
    return folder


def _why(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file is in the way; expected a new name"
    return f"{error.strerror}; expected a place that can be written to"
