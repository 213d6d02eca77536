"""Runs that differ in nothing but their seed: means with intervals, and differences on common random numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin.intervals import CONFIDENCE, Interval, interval_of
from kvtwin.store import claim_run_folder, json_bytes, read_document, read_summary, write_atomically

SCHEMA = "kvtwin.seeds/1"
SEEDS_FILE = "seeds.json"
_VARIED = ("seed", "out")  # keys that may differ between the runs of one configuration

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Repeats:
    """The runs of one configuration, by seed. Never empty."""

    runs: Mapping[int, Summary]
    folders: Mapping[int, Path | None]

    @property
    def seeds(self) -> list[int]:
        return sorted(self.runs)

    @property
    def first(self) -> Summary:
        return self.runs[self.seeds[0]]

    @property
    def config(self) -> dict[str, Any]:
        """What the runs have in common."""
        return without(self.first["config"], *_VARIED)

    @property
    def labels(self) -> dict[str, Any]:
        return without(self.first["labels"], "seed", "run")

    def figures(self) -> dict[str, Interval]:
        """Every metric that is a number, by its dotted name, over the seeds for which it is defined."""
        values: dict[str, list[float]] = {}
        for seed in self.seeds:
            for name, value in numbers_in(self.runs[seed]["metrics"]):
                values.setdefault(name, []).append(value)
        return {name: interval_of(each) for name, each in values.items()}

    @property
    def are_all_equal(self) -> bool:
        """Whether the seed changes nothing here: several runs, one result."""
        return len(self.runs) > 1 and all(run["metrics"] == self.first["metrics"] for run in self.runs.values())

    def has_traces_of(self, other: Repeats) -> bool:
        """Whether both replay the same requests wherever both ran with a seed, which is somewhere."""
        common = set(self.runs) & set(other.runs)
        return bool(common) and all(_trace(self.runs[seed]) == _trace(other.runs[seed]) for seed in common)

    def less(self, other: Repeats) -> dict[str, Interval]:
        """This minus `other`, metric by metric: the interval of the differences seed by seed.

        Both having replayed the same requests, what these do to both cancels out, so the interval is narrower than
        those of the two means, and often far narrower (Law, Simulation Modeling and Analysis, on common random
        numbers). Seeds or figures that one of the two lacks are left out.
        """
        differences: dict[str, list[float]] = {}
        for seed in self.seeds:
            theirs = dict(numbers_in(other.runs[seed]["metrics"])) if seed in other.runs else {}
            for name, value in numbers_in(self.runs[seed]["metrics"]):
                if name in theirs:
                    differences.setdefault(name, []).append(value - theirs[name])
        return {name: interval_of(each) for name, each in differences.items()}


def repeats_of(runs: Iterable[tuple[Summary, Path | None]]) -> list[Repeats]:
    """Runs and their folders by configuration, in order of first appearance. The same run made twice counts once."""
    groups: dict[str, dict[int, tuple[Summary, Path | None]]] = {}
    for summary, folder in runs:
        key = json.dumps([summary["kind"], without(summary["config"], *_VARIED)], sort_keys=True)
        groups.setdefault(key, {}).setdefault(summary["seed"], (summary, folder))
    return [_repeats(group) for group in groups.values()]


def _repeats(by_seed: Mapping[int, tuple[Summary, Path | None]]) -> Repeats:
    return Repeats(
        {seed: summary for seed, (summary, _) in by_seed.items()},
        {seed: folder for seed, (_, folder) in by_seed.items()},
    )


def numbers_in(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """(dotted name, value) of every metric that is a number: `ttft_s.p50`."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from numbers_in(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


def write_repeats(root: Path, repeats: Repeats) -> Path:
    """Writes `seeds.json` into a folder of its own, `root/name/<id>`, and returns it. It names the runs' folders.

    Raises InputError where it cannot be written.
    """
    try:
        folder = claim_run_folder(root, str(repeats.config["name"]), repeats.config)
        write_atomically(folder / SEEDS_FILE, json_bytes(_document(repeats, folder)))
    except OSError as error:
        raise InputError(f"cannot write {root / SEEDS_FILE}: {error.strerror}") from None
    return folder


def _document(repeats: Repeats, folder: Path) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "kind": repeats.first["kind"],
        "config": repeats.config,
        "labels": repeats.labels,
        "confidence_ratio": CONFIDENCE,
        "runs": {str(seed): os.path.relpath(path, folder) for seed, path in repeats.folders.items() if path},
        "metrics": {
            name: {"mean": each.mean, "half_width": each.half_width, "num": each.num}
            for name, each in repeats.figures().items()
        },
    }


def read_repeats(path: Path) -> Repeats:
    """What `path` holds: a run folder (one seed), or the folder of a `seeds.json`, whose runs are read.

    Raises InputError naming the folder and what it lacks.
    """
    file = path / SEEDS_FILE
    if not file.exists():
        return _repeats(_by_seed([path]))
    runs = read_document(file, SCHEMA).get("runs")
    if not runs or not isinstance(runs, dict) or not all(isinstance(run, str) for run in runs.values()):
        raise InputError(f"{file}: expected the runs that it is made of, a folder a seed")
    return _repeats(_by_seed([path / run for run in runs.values()]))


def _by_seed(folders: Iterable[Path]) -> dict[int, tuple[Summary, Path | None]]:
    runs = [(read_summary(folder), folder) for folder in folders]
    return {summary["seed"]: (summary, folder) for summary, folder in runs}


def without(mapping: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}


def _trace(summary: Summary) -> tuple[Any, ...]:
    trace = summary["trace"]
    return trace["sha256"], trace["num_requests"]
