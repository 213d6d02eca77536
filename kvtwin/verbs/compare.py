"""`kvtwin compare A B`: what changed between two runs, or two sets of runs over the same seeds, and what is sure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin.arguments import Arguments
from kvtwin.intervals import CONFIDENCE
from kvtwin.repeats import Repeats, read_repeats
from kvtwin.seeds_tables import comparison_of, verdict
from kvtwin.tables import print_tables

EXAMPLE = """example:
  kvtwin sim seeds=10 trace=synth eviction=lru,fifo pool.num_blocks=600   # names a folder for each policy
  kvtwin compare runs/sim/A runs/sim/B"""


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    first, second = read_repeats(Path(options.a)), read_repeats(Path(options.b))
    _check_comparable(first, second)
    if options.json:
        print(json.dumps(_document(first, second), indent=1))
        return 0
    for key, ours, theirs in _changes(first, second):
        print(f"{key}: {ours} → {theirs}")
    print_tables(comparison_of(first, second))
    num = len(set(first.runs) & set(second.runs))
    if num > 1:
        print(f"differences seed by seed on the same traces, 95 % t-intervals, n = {num} seeds")
    else:
        print(
            "one seed: differences are those of this trace; intervals take runs with several (kvtwin sim seeds=10 ...)"
        )
    return 0


def _parser() -> Arguments:
    parser = Arguments(
        "compare",
        "B minus A, metric by metric. A and B are folders of runs, or those with the seeds.json that `seeds=N` leaves.",
        epilog=EXAMPLE,
    )
    parser.add_argument("a", metavar="A", help="a folder")
    parser.add_argument("b", metavar="B", help="another")
    parser.add_argument("--json", action="store_true", help="every figure")
    return parser


def _check_comparable(first: Repeats, second: Repeats) -> None:
    """Raises InputError where a difference would not be one of the configurations."""
    for each in (first, second):
        if any(run["interrupted"] for run in each.runs.values()):
            raise InputError("compare: one of the runs was interrupted; expected whole ones")
    if first.first["kind"] != second.first["kind"]:
        raise InputError("compare: one is simulated, one measured; `kvtwin validate` compares these")
    if not set(first.runs) & set(second.runs):
        seeds = f"A has {_listed(first.seeds)}, B has {_listed(second.seeds)}"
        raise InputError(f"compare: no seed in common ({seeds}); expected the same seeds, for the same random numbers")
    if not first.has_traces_of(second):
        names = f"{first.first['trace']['name']} and {second.first['trace']['name']}"
        raise InputError(f"compare: A and B replay different requests ({names}); expected the same trace and limit")


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _document(first: Repeats, second: Repeats) -> dict[str, Any]:
    ours, theirs = first.figures(), second.figures()
    return {
        "confidence_ratio": CONFIDENCE,
        "seeds": sorted(set(first.runs) & set(second.runs)),
        "changes": {key: [one, other] for key, one, other in _changes(first, second)},
        "metrics": {
            name: {
                "a": ours[name].mean,
                "b": theirs[name].mean,
                "difference": each.mean,
                "half_width": each.half_width,
                "num": each.num,
                "verdict": verdict(each),
            }
            for name, each in second.less(first).items()
        },
    }


def _changes(first: Repeats, second: Repeats) -> list[tuple[str, Any, Any]]:
    """(key, A's value, B's) of all that is configured differently."""
    ours, theirs = dict(_leaves(first.config)), dict(_leaves(second.config))
    keys = dict.fromkeys([*ours, *theirs])
    return [(key, ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)]


def _leaves(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
