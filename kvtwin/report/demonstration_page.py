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
_MOST_TICKS = 10


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
    layout["xaxis"] |= {"title": {"text": shown.x_title}, **kind, **(_places(shown) if shown.is_logarithmic else {})}
    layout["yaxis"] |= {"title": {"text": shown.y_title}, **_figures(shown), **kind}
    return layout


def _places(shown: Demonstration) -> Figure:
    """The places themselves, where they are few enough to read; powers of ten may be but one."""
    places = sorted({x for curve in shown.curves for x in curve.x})
    if len(places) > _MOST_TICKS:
        return {}
    names = [f"{x:,.0f}" if x >= 100 else f"{x:.3g}" for x in places]
    return {"tickvals": places, "ticktext": names, "autotickangles": [0, -45]}


def _figures(shown: Demonstration) -> Figure:
    """With the unit, where a prefix alone (10m) would look like another; prefixes for large numbers only."""
    if shown.y_title.endswith("(s)"):
        return {"tickformat": "~s", "ticksuffix": "s"}
    return {"tickformat": "~s" if min(min(curve.y) for curve in shown.curves) >= 1 else "~g"}
