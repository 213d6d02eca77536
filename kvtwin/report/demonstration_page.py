"""A page with one demonstration's chart."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvtwin.demonstrations.demonstration import Curve, Demonstration
from kvtwin.report.figure import Chart, Figure, LegendEntry, layout_of, line
from kvtwin.report.page import Section, chart_grid, render_page
from kvtwin.report.report import write_page
from kvtwin.report.verdict import Verdict

_COLORS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#eab308", "#06b6d4")


def write_demonstration_page(path: Path, shown: Demonstration) -> None:
    """Write one offline HTML file. Raises InputError where plotly is missing or the file cannot be written."""
    data = [_drawn(curve, number) for number, curve in enumerate(shown.curves)]
    legend = [LegendEntry(each["name"], each["line"]["color"], (number,)) for number, each in enumerate(data)]
    chart = Chart("demonstration", shown.title, data, _layout(shown), legend, shown.header, shown.rows)
    section = Section("What it shows", " ".join(shown.findings), chart_grid([chart]))
    verdict = Verdict("kvtwin demo", shown.title, "neutral")
    footer = "Solid lines are measured or simulated, dashed ones are arithmetic."
    write_page(path, render_page(shown.title, verdict, [], "", [], [section], [chart], footer))


def _drawn(curve: Curve, number: int) -> Figure:
    color = _COLORS[number % len(_COLORS)]
    x, y = np.array(curve.x, dtype=np.float64), np.array(curve.y, dtype=np.float64)
    drawn = line(curve.name, x, y, color, dash="solid" if curve.is_measured else "dash")
    return drawn | {"mode": "lines+markers" if curve.is_measured and len(x) < 60 else "lines"}


def _layout(shown: Demonstration) -> Figure:
    layout = layout_of(480)
    kind = {"type": "log", "dtick": 1} if shown.is_logarithmic else {"rangemode": "tozero"}
    layout["xaxis"] |= {"title": {"text": shown.x_title}, **kind}
    layout["yaxis"] |= {"title": {"text": shown.y_title}, "tickformat": "~s", **kind}
    return layout
