"""Validations of several configurations on the same requests: do simulator and engine rank them alike?"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import InputError
from kvtwin.agreement import Ranked, ranking_agreement
from kvtwin.comparison import read_comparison
from kvtwin.repeats import without
from kvtwin.store import claim_run_folder, json_bytes, read_summary, write_atomically
from kvtwin.tables import varying_labels

SCHEMA = "kvtwin.ranking/1"
RANKING_FILE = "ranking.json"
# What configurations are ranked by, and which of its values is the best.
RANKED: Mapping[str, Callable[[Iterable[float]], float]] = {
    "output_tokens_per_s": max,
    "ttft_s.mean": min,
    "tpot_s.mean": min,
    "e2e_s.mean": min,
}
_SAYS_NOTHING = (
    "name",
    "out",
    "report",
    "seed",
    "validate",
)  # keys in which one configuration's validations may differ


@dataclass(frozen=True)
class Validated:
    """One validation: where it lies, what it ran, and every figure, simulated and measured."""

    folder: Path
    labels: Mapping[str, Any]
    config: Mapping[str, Any]
    trace: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, float | None]]

    @property
    def requests(self) -> str:
        """What two must have in common to be ranked: the trace and what was made of it, and the model."""
        parts = [self.trace["sha256"], self.trace["num_requests"], self.config["trace"], self.config["model"]]
        return json.dumps(parts, sort_keys=True)

    @property
    def configuration(self) -> str:
        return json.dumps(without(self.config, *_SAYS_NOTHING), sort_keys=True)


@dataclass(frozen=True)
class Ranking:
    """Two or more configurations that served the same requests, by name."""

    members: Mapping[str, Validated]

    @property
    def trace_name(self) -> str:
        return str(next(iter(self.members.values())).trace["name"])

    def agreements(self) -> dict[str, dict[str, Any]]:
        """What `ranking_agreement` says by each metric that two members at least have on both sides."""
        figures = {name: list(self._figures(name)) for name in RANKED}
        return {name: ranking_agreement(figures[name], RANKED[name]) for name in RANKED if len(figures[name]) > 1}

    def _figures(self, metric: str) -> Iterator[Ranked]:
        for name, validated in self.members.items():
            row = validated.metrics.get(metric, {})
            simulated, measured = row.get("simulated"), row.get("measured")
            if simulated is not None and measured is not None:
                yield Ranked(name, simulated, measured, row.get("engine_spread_ratio"))


def read_validated(folder: Path) -> Validated:
    """The validation in `folder`; raises InputError naming what it lacks."""
    comparison, simulated = read_comparison(folder), read_summary(folder / "sim")
    return Validated(folder, simulated["labels"], simulated["config"], simulated["trace"], comparison["metrics"])


def rankings_of(validated: Iterable[Validated]) -> list[Ranking]:
    """Those that can be ranked, by what they served. A configuration that was validated twice counts once."""
    groups: dict[str, dict[str, Validated]] = {}
    for each in validated:
        groups.setdefault(each.requests, {}).setdefault(each.configuration, each)
    return [Ranking(_named(list(group.values()))) for group in groups.values() if len(group) > 1]


def why_no_ranking(num_validated: int) -> str:
    return (
        f"no ranking: it takes two configurations validated on the same requests, here {_are(num_validated)}; "
        f"expected e.g. kvtwin validate -m eviction=lru,fifo"
    )


def _are(num_validated: int) -> str:
    return "is one" if num_validated == 1 else f"no two of {num_validated} were"


def write_ranking(root: Path, ranking: Ranking) -> Path:
    """Writes `ranking.json` into a folder of its own, `root/name/<id>`, and returns it. It names the validations.

    Raises InputError where it cannot be written.
    """
    first = next(iter(ranking.members.values()))
    try:
        folder = claim_run_folder(root, str(first.config["name"]), {"ranking": list(ranking.members)})
        write_atomically(folder / RANKING_FILE, json_bytes(_document(ranking, folder)))
    except OSError as error:
        raise InputError(f"cannot write {root / RANKING_FILE}: {error.strerror}") from None
    return folder


def _document(ranking: Ranking, folder: Path) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": ranking.trace_name,
        "configurations": {
            name: {
                "run": os.path.relpath(each.folder, folder),
                "labels": each.labels,
                "metrics": {metric: each.metrics[metric] for metric in RANKED if metric in each.metrics},
            }
            for name, each in ranking.members.items()
        },
        "agreement": ranking.agreements(),
    }


def _named(validated: Sequence[Validated]) -> dict[str, Validated]:
    """By the labels in which they differ; where these do not tell them apart, with their folders' names."""
    varying = varying_labels([each.labels for each in validated])
    names = [" ".join(str(each.labels[label]) for label in varying if label in each.labels) for each in validated]
    if len(set(names)) < len(names):
        names = [f"{name} {each.folder.name}".strip() for name, each in zip(names, validated, strict=True)]
    return dict(zip(names, validated, strict=True))
