"""A page with miss-ratio curves: hits against capacity, one line a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvtwin.formatting import NOTHING, count_text, ratio_text
from kvtwin.mrc_screen import headline, hit_ratios, remarks
from kvtwin.report.figure import NEUTRAL, Chart, Figure, LegendEntry, capacity_axis, layout_of, line
from kvtwin.report.page import Section, Tile, chart_grid, render_page, tiles
from kvtwin.report.report import write_page
from kvtwin.report.verdict import Verdict

_COLORS = ("#3b82f6", "#f97316", "#10b981", "#a855f7", "#ef4444", "#eab308", "#06b6d4", "#ec4899", "#84cc16")
_DASHES = ("solid", "dot", "dashdot")


def write_mrc_page(path: Path, found: Mapping[str, Any]) -> None:
    """Write one offline HTML file of what `kvtwin.mrc.measure` found.

    Raises InputError where plotly is not installed or the file cannot be written.
    """
    chart = _curves(found)
    sections = [
        Section("Key figures", "", tiles(_tiles(found))),
        Section("Hits against capacity", " ".join(remarks(found)), chart_grid([chart])),
    ]
    verdict = Verdict(str(found["trace"]), f"mode {found['mode']}", "neutral")
    footer = (
        "One request after the other; answers and time left out. LRU's line is exact at every capacity, the others "
        "are straight from one point to the next."
    )
    write_page(path, render_page("kvtwin mrc", verdict, [], f"{headline(found)}.", [], sections, [chart], footer))


def _curves(found: Mapping[str, Any]) -> Chart:
    ratios = hit_ratios(found)
    capacities = np.array(list(next(iter(ratios.values()))), dtype=np.float64)
    data: list[Figure] = []
    legend: list[LegendEntry] = []
    for number, (name, by_capacity) in enumerate(ratios.items()):
        color, dash = _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]
        x, y = capacities, np.array(list(by_capacity.values()))
        is_exact = name == "lru" and len(found["lru_curve"]) > 0
        if is_exact:
            x, y = _lru_line(found, capacities)
        drawn = line(name, x, y, color, dash=dash)
        drawn |= {"mode": "lines" if is_exact else "lines+markers", "hovertemplate": _hover(name)}
        legend.append(LegendEntry(name, color, (len(data),)))
        data.append(drawn)
    for name, y in _limits(found, capacities):
        is_ceiling = name == "infinite cache"
        drawn = line(name, capacities, y, NEUTRAL, dash="dash" if is_ceiling else "dot")
        drawn |= {"mode": "lines" if is_ceiling else "lines+markers", "hovertemplate": _hover(name)}
        legend.append(LegendEntry(name, NEUTRAL, (len(data),)))
        data.append(drawn)
    rows = [
        [f"{int(c):,}", *(ratio_text(by_capacity[int(c)]) for by_capacity in ratios.values()), bound]
        for c, bound in zip(capacities.tolist(), _bound_cells(found, len(capacities)), strict=True)
    ]
    return Chart(
        "mrc",
        "Hit ratio by block",
        data,
        _layout(found, capacities.tolist()),
        legend,
        ("blocks", *ratios, "Belady"),
        rows,
    )


def _lru_line(found: Mapping[str, Any], capacities: Any) -> tuple[Any, Any]:
    """LRU's exact curve over the capacities that the other policies have."""
    inside = [p for p in found["lru_curve"] if capacities[0] <= p["capacity_blocks"] <= capacities[-1]]
    own = [row for row in found["results"] if row["policy"] == "lru"]
    points = sorted({(row["capacity_blocks"], row["hit_blocks"]) for row in (*inside, *own)})
    x, hits = np.array(points, dtype=np.float64).T
    return x, hits / found["references"]


def _limits(found: Mapping[str, Any], capacities: Any) -> list[tuple[str, Any]]:
    ceiling = found["infinite"]["hit_blocks"] / found["references"]
    limits = [("infinite cache", np.full(len(capacities), ceiling))]
    if found["bound"]:
        limits.append(("Belady's bound", np.array([row["hit_block_ratio"] for row in found["bound"]])))
    return limits


def _bound_cells(found: Mapping[str, Any], number: int) -> list[str]:
    return [ratio_text(row["hit_block_ratio"]) for row in found["bound"]] or [NOTHING] * number


def _layout(found: Mapping[str, Any], capacities: Sequence[float]) -> Figure:
    layout = layout_of(480)
    layout["xaxis"] |= capacity_axis(found["block_tokens"], capacities[0], capacities[-1])
    layout["yaxis"] |= {"title": {"text": "hit blocks over references"}, "tickformat": ".0%", "rangemode": "tozero"}
    if found["lru_knee"] is not None:
        knee = found["lru_knee"]["capacity_blocks"]
        mark = {"yref": "paper", "line": {"color": NEUTRAL, "width": 1, "dash": "dot"}}
        layout["shapes"] = [{"type": "line", "x0": knee, "x1": knee, "y0": 0, "y1": 1} | mark]
        place = {"x": float(np.log10(knee)), "xanchor": "left", "y": 0, "yref": "paper", "yanchor": "bottom"}
        layout["annotations"] = [place | {"text": "LRU's knee", "textangle": -90, "showarrow": False}]
    return layout


def _hover(name: str) -> str:
    return f"{name}: %{{y:.2%}} with %{{x:,.0f}} blocks<extra></extra>"


def _tiles(found: Mapping[str, Any]) -> list[Tile]:
    knee = found["lru_knee"]
    return [
        Tile("References", count_text(found["references"]), f"{found['num_requests']:,} requests"),
        Tile("Unique blocks", count_text(found["unique_blocks"]), f"of {found['block_tokens']} tokens"),
        Tile("Infinite cache", ratio_text(found["infinite"]["hit_blocks"] / found["references"]), "of references hit"),
        Tile("LRU's knee", NOTHING if knee is None else count_text(knee["capacity_blocks"]), "blocks"),
        Tile("Longest request", count_text(found["longest_request_blocks"]), "blocks"),
    ]
