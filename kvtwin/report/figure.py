"""What every chart of a report is made of: a plain Plotly figure (dicts), a legend, and a table of the same numbers.

Colours that depend on the reader's light or dark theme are set in page.js.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from kvtwin.store import Run

SIMULATED, MEASURED, NEUTRAL = "#3b82f6", "#f97316", "#94a3b8"

Figure = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One side of the twin: `runs` holds one simulated run, or the engine's repeats."""

    name: str
    color: str
    runs: Sequence[Run]


@dataclass(frozen=True)
class LegendEntry:
    """A named colour and the traces of the figure that it shows or hides."""

    name: str
    color: str
    traces: tuple[int, ...]


@dataclass(frozen=True)
class Chart:
    """A Plotly figure, its legend, and the same numbers as a table (a header, then rows of text)."""

    key: str
    title: str
    data: list[Figure]
    layout: Figure
    legend: Sequence[LegendEntry]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def line(
    name: str, x: NDArray[Any], y: NDArray[Any], color: str, panel: int = 0, dash: str = "solid", opacity: float = 1
) -> Figure:
    """A line through the points (x, y), in a panel counted from the top."""
    axis = "" if panel == 0 else str(panel + 1)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": rounded(x),
        "y": rounded(y),
        "yaxis": f"y{axis}",
        "opacity": opacity,
        "line": {"color": color, "width": 2, "dash": dash},
    }


def layout_of(height: int) -> Figure:
    """The layout that every figure starts from, `height` in pixels; its legend is HTML below the figure."""
    axis = {"automargin": True, "zeroline": False}
    return {
        "height": height,
        "margin": {"l": 12, "r": 12, "t": 28, "b": 12},
        "showlegend": False,
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def capacity_axis(block_tokens: int, least: float, most: float) -> Figure:
    """A logarithmic axis of blocks, marked at powers of ten; within two of them, at twice and five times these, too."""
    axis: Figure = {"title": {"text": f"capacity (blocks of {block_tokens} tokens)"}, "type": "log", "tickformat": "~s"}
    if most >= 100 * least:
        return axis | {"dtick": 1}
    marks = [digit * 10**power for power in range(len(str(int(most))) + 1) for digit in (1, 2, 5)]
    return axis | {"tickvals": [mark for mark in marks if least <= 2 * mark and mark <= 2 * most]}


def panels(titles: Sequence[str], end_s: float) -> Figure:
    """A layout of panels under one another that share the time axis, the first on top."""
    layout = layout_of(500)
    share, gap = 1 / len(titles), 0.06
    for panel, title in enumerate(titles):
        top = 1 - panel * share
        layout[f"yaxis{panel + 1 if panel else ''}"] = {
            "automargin": True,
            "zeroline": False,
            "domain": [max(0.0, top - share + (gap if panel < len(titles) - 1 else 0)), top],
            "title": {"text": title},
            "rangemode": "tozero",
        }
    bottom = "y" if len(titles) == 1 else f"y{len(titles)}"
    layout["xaxis"] |= {"title": {"text": "time since first arrival (s)"}, "range": [0, end_s], "anchor": bottom}
    layout["hovermode"] = "x unified"
    return layout


def rounded(values: NDArray[Any]) -> list[float]:
    """Six significant digits: more would only make the file larger."""
    return [float(f"{value:.6g}") for value in values.tolist()]
