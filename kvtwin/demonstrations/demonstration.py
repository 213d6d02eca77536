"""What a demonstration shows: a few sentences, a table, one chart, and all figures with their unit in the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One line of the chart; `is_measured` says whether its points are measurements, or arithmetic or a limit."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    is_measured: bool = True


@dataclass(frozen=True)
class Demonstration:
    """`findings` are the sentences that the figures bear out; `figures` go into --json."""

    title: str
    findings: Sequence[str]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    curves: Sequence[Curve]
    x_title: str
    y_title: str
    figures: Mapping[str, Any]
    is_logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """The line of least squares through points, and how much of their variance it explains."""

    slope: float
    intercept: float
    r_squared: float


def fitted_line(x: Floats, y: Floats) -> Line:
    """Raises ValueError for fewer than two points. Points that do not vary at all are explained wholly (1)."""
    if len(x) < 2:
        raise ValueError(f"{len(x)} points; a line needs two")
    slope, intercept = np.polyfit(x, y, 1)
    residual, total = float(((y - slope * x - intercept) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
    return Line(float(slope), float(intercept), 1 - residual / total if total else 1.0)


def window_quartiles(values: Floats, num_windows: int) -> tuple[Floats, Floats]:
    """(mean place, lower quartile) of so many consecutive windows of about equal length: disturbances only ever add."""
    windows = np.array_split(np.arange(len(values)), min(num_windows, len(values)))
    return np.array([window.mean() for window in windows]), np.array([np.percentile(values[w], 25) for w in windows])
