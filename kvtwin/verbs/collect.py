"""`kvtwin collect FOLDER...`: the rows of finished runs, whichever launcher ran them; means over seeds, rankings."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from core.errors import InputError
from kvtwin.arguments import Arguments
from kvtwin.comparison import COMPARISON_FILE
from kvtwin.failures import tell
from kvtwin.ranking import rankings_of, read_validated, why_no_ranking
from kvtwin.ranking_tables import print_rankings
from kvtwin.repeats import numbers_in, repeats_of
from kvtwin.seeds_tables import print_seeds
from kvtwin.store import read_summary
from kvtwin.tables import KINDS, print_sweeps
from kvtwin.verbs.finishing import note

Row = tuple[dict[str, Any], Path]
T = TypeVar("T")


def run(args: Sequence[str]) -> int:
    """1 if some summary could not be read; the rows of the others are printed all the same."""
    options = _parser().parse_args(args)
    folders = [Path(folder) for folder in options.folders]
    files = _files_below(folders, "summary.json")
    if not files:
        raise InputError(f"collect: no finished run below {', '.join(options.folders)}")
    rows = _read(files, lambda folder: (read_summary(folder), folder))
    num_unreadable = len(files) - len(rows)
    rows.sort(key=lambda row: _order(row[0]))
    if options.json:
        print(json.dumps([_record(*row) for row in rows], indent=1))
    elif options.csv:
        _write_csv([_record(*row) for row in rows])
    else:
        _print_rows(rows)
        num_unreadable += _print_rankings(folders)
    return 1 if num_unreadable else 0


def _print_rows(rows: Sequence[Row]) -> None:
    whole = [row for row in rows if not row[0]["interrupted"]]
    if len(whole) < len(rows):
        note(f"left out what was interrupted, {len(rows) - len(whole)} of {len(rows)} runs; --json has it")
    labelled = [_labelled(*row) for row in whole]
    if whole:
        print_sweeps(labelled)
    folders = [folder for _, folder in whole]
    repeats = [each for each in repeats_of(zip(labelled, folders, strict=True)) if len(each.runs) > 1]
    if repeats:
        print_seeds(repeats)


def _parser() -> Arguments:
    parser = Arguments(
        "collect",
        "The rows of all finished runs below the folders, as their sweeps printed them: a table for those of the same\n"
        "options, headed by what these have in common. Interrupted: --json.",
    )
    parser.add_argument("folders", nargs="*", default=["runs"], metavar="FOLDER", help="default: runs")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="labels and metrics of each run")
    form.add_argument("--csv", action="store_true", help="the same, a line a run")
    return parser


def _files_below(folders: Sequence[Path], name: str) -> list[Path]:
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"collect: no folder {folder}; expected one with finished runs, such as runs/sim")
    return [file for folder in folders for file in sorted(folder.rglob(name))]


def _read(files: Sequence[Path], read: Callable[[Path], T]) -> list[T]:
    """What `read` makes of the folder of each file; those of which it makes nothing are told."""
    found = []
    for file in files:
        try:
            found.append(read(file.parent))
        except InputError as error:
            tell(str(error))
    return found


def _print_rankings(folders: Sequence[Path]) -> int:
    """Whether simulator and engine rank alike what was validated below the folders; the number of unreadable ones."""
    files = _files_below(folders, COMPARISON_FILE)
    validated = _read(files, read_validated)
    rankings = rankings_of(validated)
    print_rankings(rankings)
    if validated and not rankings:
        note(why_no_ranking(len(validated)))
    return len(files) - len(validated)


def _order(summary: Mapping[str, Any]) -> str:
    """By label, numbers by size: the same whatever order the runs were made in."""
    labels = {**summary["labels"], "seed": summary["seed"]}
    return json.dumps({name: f"{value:030}" if isinstance(value, int) else value for name, value in labels.items()})


def _labelled(summary: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """With labels that tell simulated rows from measured ones, and the runs of one validation from those of another."""
    is_validated = (folder.parent / COMPARISON_FILE).exists()
    run = f"{folder.parent.name}/{folder.name}" if is_validated else folder.name
    kind = KINDS.get(summary["kind"], summary["kind"])
    return {**summary, "labels": {**summary["labels"], "kind": kind, "run": run}}


def _record(summary: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    head = {"run": str(folder), "kind": summary["kind"], "seed": summary["seed"]}
    marks = {"interrupted": summary["interrupted"]}
    return head | marks | {"labels": summary["labels"], "metrics": dict(numbers_in(summary["metrics"]))}


def _write_csv(records: Sequence[Mapping[str, Any]]) -> None:
    flat = [
        {
            **{name: value for name, value in record.items() if not isinstance(value, Mapping)},
            **{f"label.{name}": value for name, value in record["labels"].items()},
            **record["metrics"],
        }
        for record in records
    ]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
