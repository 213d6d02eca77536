"""`kvtwin report RUN...`: writes report.html into finished run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.errors import InputError
from kvtwin.report import write_run_report
from kvtwin.store import read_run


def run(args: Sequence[str]) -> int:
    if not args or args[0].startswith("-"):
        raise InputError("usage: kvtwin report RUN_FOLDER...")
    for path in map(Path, args):
        write_run_report(path / "report.html", read_run(path))
        print(path / "report.html")
    return 0
