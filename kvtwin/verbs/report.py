"""`kvtwin report RUN...`: writes report.html into run folders, of one run or of a validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvtwin.arguments import Arguments
from kvtwin.comparison import COMPARISON_FILE, read_comparison
from kvtwin.report import write_report, write_run_report
from kvtwin.store import read_run


def run(args: Sequence[str]) -> int:
    parser = Arguments("report", "Writes report.html into each folder.")
    parser.add_argument("folders", nargs="+", metavar="RUN_FOLDER", help="of a run, or of a validation")
    for path in map(Path, parser.parse_args(args).folders):
        page = path / "report.html"
        if (path / COMPARISON_FILE).exists():
            _write_validation(path, page)
        else:
            write_run_report(page, read_run(path))
        print(page)
    return 0


def _write_validation(path: Path, page: Path) -> None:
    repeats = sorted(path.glob("engine-*"), key=lambda folder: int(folder.name.partition("-")[2]))
    write_report(page, read_run(path / "sim"), [read_run(repeat) for repeat in repeats], read_comparison(path))
