"""Numbers that charts draw: latencies, CDF points and step series, cut down to what a line can show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtwin.store import Run

MAX_POINTS = 2_000

Floats = NDArray[np.float64]


def cdf_points(values: Floats) -> tuple[Floats, Floats]:
    """Sorted values and the share of values that are no larger, at most MAX_POINTS of each; both ends are kept."""
    ranked = np.sort(values[~np.isnan(values)])
    rows = np.unique(np.linspace(0, ranked.size - 1, min(ranked.size, MAX_POINTS)).astype(np.intp))
    return ranked[rows], (rows + 1) / max(1, ranked.size)


def extreme_rows(column: NDArray[np.int64]) -> NDArray[np.intp]:
    """Rows to draw of a long series: of each of MAX_POINTS / 2 equal parts its lowest and its highest value.

    A peak of one step is never lost, which every n-th row would not promise.
    """
    if column.size <= MAX_POINTS:
        return np.arange(column.size)
    bounds = np.linspace(0, column.size, MAX_POINTS // 2 + 1).astype(np.intp)
    parts = [(begin, column[begin:end]) for begin, end in pairwise(bounds)]
    rows = [begin + part.argmin() for begin, part in parts] + [begin + part.argmax() for begin, part in parts]
    return np.unique(np.array(rows, dtype=np.intp))


def sampled_rows(num_rows: int) -> NDArray[np.intp]:
    """At most MAX_POINTS rows, evenly spread."""
    return np.unique(np.linspace(0, num_rows - 1, min(num_rows, MAX_POINTS)).astype(np.intp))


def step_times_s(run: Run) -> Floats:
    """When each step started, counted from the first arrival, [num_steps]. Some never arrived if it was interrupted."""
    return np.asarray(run.steps["start_s"] - np.nanmin(run.requests["arrival_s"], initial=np.inf))


def rows_at(times_s: Floats, at_s: Floats) -> NDArray[np.intp]:
    """For each moment the last step that had started by then (the first step for moments before it)."""
    return np.maximum(np.searchsorted(times_s, at_s, side="right") - 1, 0)


class Drawn(NamedTuple):
    """How many points of a line are drawn."""

    num_drawn: int
    num_all: int


def drawn_note(lines: Iterable[Drawn], what: str, how: str) -> str:
    """What a cut-down chart says about itself, once for all its lines; empty when everything is drawn."""
    cut = {line for line in lines if line.num_drawn < line.num_all}
    if not cut:
        return ""
    most_drawn, most = (max(counts) for counts in zip(*cut, strict=True))
    if len(cut) == 1:
        return f"Draws {most_drawn:,} of {most:,} {what}: {how}."
    up_to = "" if len({line.num_all for line in cut}) == 1 else "up to "
    return f"Draws at most {most_drawn:,} of {up_to}{most:,} {what} a line: {how}."


def notes(*parts: str) -> str:
    """The parts that say something, as one line."""
    return " ".join(part for part in dict.fromkeys(parts) if part)


def longest(runs: Sequence[Run]) -> float:
    """The end of the last step of any run in seconds after its first arrival; 0 when no step ran."""
    ends = [step_times_s(run)[-1] + run.steps["duration_s"][-1] for run in runs if run.steps["start_s"].size]
    return float(max(ends, default=0.0))
