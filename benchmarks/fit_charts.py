"""Small line charts as one SVG, two curves a panel: a trace, and what a recipe made of it."""

from __future__ import annotations

from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt

from traces.block_references import block_references
from traces.schema import Trace
from traces.sharing import prefix_distances
from traces.stack_distance import COLD

COLORS = ("#3b82f6", "#f97316")
WIDTH, HEIGHT, MARGIN = 300, 190, 34  # of a panel, and around its plot
NUM_POINTS = 120


class Series(NamedTuple):
    name: str
    trace: Trace


class Curve(NamedTuple):
    """Points of a line: x on a logarithmic axis, y from 0 to 1."""

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]


class Panel(NamedTuple):
    title: str
    curves: list[Curve]  # trace, recipe


def quantile_curve(values: npt.NDArray[Any]) -> Curve:
    """Share of the values up to x; values below a ten-thousandth of the largest are drawn there."""
    y = np.linspace(0, 1, NUM_POINTS)
    return Curve(np.maximum(np.quantile(values, y), values.max() / 1e4), y)


def hit_curve(trace: Trace) -> Curve:
    """Share of the prompt tokens that an LRU cache of x blocks hits."""
    references = block_references(trace)
    distances = prefix_distances(references)
    x = np.geomspace(16, references.num_unique, NUM_POINTS)
    hits = [references.num_tokens[(distances != COLD) & (distances <= blocks)].sum() for blocks in x]
    return Curve(x, np.array(hits) / references.num_tokens.sum())


def svg(rows: list[list[Panel]]) -> str:
    """The panels, row by row."""
    width, height = max(map(len, rows)) * WIDTH, len(rows) * HEIGHT + 24
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
        ' font-size="10" fill="none">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for place, (name, color) in enumerate(zip(("trace", "a trace made from its recipe"), COLORS, strict=True)):
        x = MARGIN + place * 80
        parts.append(f'<path d="M{x} 12h18" stroke="{color}" stroke-width="2"/>{_text(x + 22, 15.5, name)}')
    for row, panels in enumerate(rows):
        for column, panel in enumerate(panels):
            parts.append(f'<g transform="translate({column * WIDTH} {row * HEIGHT + 24})">{_panel(panel)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel) -> str:
    low = np.log10(min(curve.x.min() for curve in panel.curves))
    high = np.log10(max(curve.x.max() for curve in panel.curves))
    most = 1.0 if max(curve.y.max() for curve in panel.curves) > 0.5 else 0.5
    plot_width, plot_height = WIDTH - MARGIN - 12, HEIGHT - MARGIN - 18

    def across(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return MARGIN + (np.log10(x) - low) / (high - low) * plot_width

    def down(y: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return 18 + (1 - y / most) * plot_height

    parts = [_text(MARGIN, 12, panel.title, size=11)]
    for share in (0, most / 2, most):
        y = float(down(np.float64(share)))
        parts.append(
            f'<path d="M{MARGIN} {y:.1f}h{plot_width}" stroke="#e2e8f0"/>{_text(MARGIN - 4, y + 3, share, "end")}'
        )
    for exponent in range(int(np.ceil(low)), int(np.floor(high)) + 1):
        x = float(across(np.float64(10.0**exponent)))
        parts.append(f'<path d="M{x:.1f} 18v{plot_height}" stroke="#e2e8f0"/>')
        parts.append(_text(x, HEIGHT - 4, f"{10.0**exponent:,g}", "middle"))
    for curve, color in zip(panel.curves, COLORS, strict=True):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across(curve.x), down(curve.y), strict=True))
        parts.append(f'<polyline points="{points}" stroke="{color}" stroke-width="1.6" stroke-opacity="0.85"/>')
    return "".join(parts)


def _text(x: float, y: float, text: object, anchor: str = "start", size: int = 10) -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {where} fill="#334155">{escape(str(text))}</text>'
