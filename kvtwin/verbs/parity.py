"""`kvtwin parity LOG...`: recorded decisions of other engines, replayed by our scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.errors import InputError
from kvtwin.arguments import Arguments
from kvtwin.parity.checking import check_log


def run(args: Sequence[str]) -> int:
    """A line per log; 0 only if every one of them is equal."""
    parser = Arguments("parity", "Replays recorded decisions of vLLM and SGLang, and names the first that differs.")
    parser.add_argument("logs", nargs="+", metavar="LOG", help="a recorded decision log, JSON lines")
    all_equal = True
    for path in map(Path, parser.parse_args(args).logs):
        try:
            result = check_log(path)
        except InputError as error:
            print(f"{path.name}: not compared ({error})")
            all_equal = False
            continue
        all_equal = all_equal and result.is_equal
        print(f"{path.name}: {result.num_steps} steps compared, {result.difference or 'equal'}")
    return 0 if all_equal else 1
