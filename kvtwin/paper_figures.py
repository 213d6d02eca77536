"""A sweep beside the published figures it is to reproduce: what the `paper` block of an experiment says, checked.

A check compares one figure of the job in `row` (by the label that `along` names, or by several with spaces between), or
with `over` its ratio to the same figure of another row. With `level` and `by`, the figure is where a curve crosses: the
greatest value of the label `by` at which the metric is still at the level, between jobs that differ in it. `paper` is a
number, or a range of two; `within` (or `within_ratio`, of the number) says how far a number may be off. Without either,
it is only shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import log
from typing import Any

from omegaconf import DictConfig, OmegaConf

from core.errors import InputError
from kvtwin.formatting import NOTHING, metric_label, metric_text

Summaries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """One published figure."""

    metric: str
    row: str
    paper: Any
    over: str | None = None
    within: float | None = None
    within_ratio: float | None = None
    level: float | None = None
    by: str | None = None

    @property
    def name(self) -> str:
        label = metric_label(self.metric)
        if self.by is not None:
            label = f"{self.by.replace('_', ' ')} at {label} of {metric_text(self.metric, self.level)}"
        return f"{label}: {self.row}{f' / {self.over}' if self.over else ''}"

    def text(self, value: float | None) -> str:
        """As the metric is written; a ratio as a multiple."""
        if value is None:
            return NOTHING
        if self.over is not None:
            return f"{value:.2f}x"
        return f"{value:.3g}" if self.by is not None else metric_text(self.metric, value)

    @property
    def paper_text(self) -> str:
        low, high = self._bounds
        if isinstance(self.paper, list):
            return f"{self.text(low)} to {self.text(high)}"
        if low is None or high is None:
            return self.text(self.paper)
        return f"{self.text(self.paper)} ± {self.text((high - low) / 2)}"

    @property
    def _bounds(self) -> tuple[float | None, float | None]:
        if isinstance(self.paper, list):
            return self.paper[0], self.paper[1]
        reach = self.within if self.within_ratio is None else self.within_ratio * self.paper
        return (None, None) if reach is None else (self.paper - reach, self.paper + reach)

    def verdict(self, value: float | None) -> str:
        """Holds, does not hold, or nothing to say."""
        low, high = self._bounds
        if low is None or high is None:
            return ""
        if value is None:
            return "not measured"
        return "holds" if low <= value <= high else "does not hold"


@dataclass(frozen=True, slots=True)
class PaperFigures:
    """The `paper` block: where the figures stand, and the checks."""

    source: str
    along: str
    checks: list[Check]

    def rows(self, summaries: Summaries) -> list[tuple[str, str, str, str]]:
        """(figure, the paper's, here, verdict) of every check."""
        return [
            (check.name, check.paper_text, check.text(value), check.verdict(value))
            for check in self.checks
            for value in [self._measured(check, summaries)]
        ]

    def _measured(self, check: Check, summaries: Summaries) -> float | None:
        value = self._value(check, check.row, summaries)
        if check.over is None or value is None:
            return value
        whole = self._value(check, check.over, summaries)
        return value / whole if whole else None

    def _value(self, check: Check, row: str, summaries: Summaries) -> float | None:
        chosen = [summary for summary in summaries if self._row_of(summary) == row]
        if check.by is None or check.level is None:
            return _figure(chosen[0], check.metric) if chosen else None
        points = [(float(summary["labels"][check.by]), _figure(summary, check.metric)) for summary in chosen]
        return crossing(sorted((at, value) for at, value in points if value is not None), check.level)

    def _row_of(self, summary: Mapping[str, Any]) -> str:
        return " ".join(str(summary["labels"].get(name)) for name in self.along.split())


def crossing(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Where the curve through `points`, by rising abscissa, first rises above `level`; None where it does not.

    Between points the logarithm of the value is linear: latencies grow by factors where load passes capacity.
    """
    for (at, value), (next_at, next_value) in pairwise(points):
        if 0 < value <= level < next_value:
            return at + (next_at - at) * (log(level) - log(value)) / (log(next_value) - log(value))
    return None


def paper_figures(config: Mapping[str, Any]) -> PaperFigures | None:
    """The `paper` block of a run's configuration; None without one. Raises InputError for one that is not right."""
    block = config.get("paper")
    if block is None:
        return None
    if not isinstance(block, Mapping) or set(block) != {"source", "along", "checks"}:
        raise InputError("paper: expected the keys source, along and checks")
    return PaperFigures(str(block["source"]), str(block["along"]), [_check(each) for each in block["checks"]])


def check_paper_figures(config: DictConfig) -> None:
    """Raises InputError for a `paper` block that is not right, before anything runs."""
    if "paper" in config:
        paper_figures({"paper": OmegaConf.to_container(config.paper)})


def _check(values: Any) -> Check:
    known = [field.name for field in fields(Check)]
    if (
        not isinstance(values, Mapping)
        or not set(values) <= set(known)
        or not {"metric", "row", "paper"} <= set(values)
    ):
        raise InputError(f"paper.checks: {values}: expected metric, row and paper, and of {', '.join(known[3:])}")
    check = Check(**{str(key): value for key, value in values.items()})
    is_range = isinstance(check.paper, list) and len(check.paper) == 2
    numbers = check.paper if is_range else [check.paper]
    if not all(isinstance(number, int | float) for number in numbers):
        raise InputError(f"paper.checks: paper={check.paper} of {check.metric}: expected a number, or two for a range")
    if (check.level is None) != (check.by is None):
        raise InputError(f"paper.checks: {check.metric}: expected both level and by, or neither")
    return check


def _figure(summary: Mapping[str, Any], metric: str) -> float | None:
    value: Any = summary["metrics"]
    for part in metric.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise InputError(f"paper.checks: metric={metric}: no such figure in summary.json")
        value = value[part]
    return None if value is None else float(value)
