"""Charts of a trace: arrivals over time, gaps, lengths, what an LRU cache hits, how soon blocks are asked for again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtwin.formatting import count_text, ratio_text, seconds_text
from kvtwin.report.figure import (
    MEASURED,
    NEUTRAL,
    SIMULATED,
    Chart,
    Figure,
    LegendEntry,
    capacity_axis,
    layout_of,
    line,
    rounded,
)
from kvtwin.report.series import Drawn, cdf_points, drawn_note
from traces.schema import Trace
from traces.statistics import PS_PER_S

_NUM_BINS = 240
_TABLE_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
_TABLE_BINS = 24


def arrivals_chart(trace: Trace) -> Chart:
    """Requests per second, in equal bins of the span."""
    times_s = (trace.arrival_ps - trace.arrival_ps[0]) / PS_PER_S
    edges_s, rates = _rates(times_s, _NUM_BINS)
    drawn = line("rate", edges_s[:-1], rates, SIMULATED)
    drawn["line"] |= {"shape": "hv", "width": 1.5}
    drawn |= {"fill": "tozeroy", "hovertemplate": "%{y:.3~f} req/s at %{x:.4~r} s<extra></extra>"}
    layout = layout_of(320)
    layout["xaxis"] |= {"title": {"text": "time since first arrival (s)"}}
    layout["yaxis"] |= {"title": {"text": "requests per second"}, "rangemode": "tozero"}
    table_edges, table_rates = _rates(times_s, _TABLE_BINS)
    rows = [
        [f"from {seconds_text(start)}", f"{rate:.3g}"]
        for start, rate in zip(table_edges[:-1].tolist(), table_rates.tolist(), strict=True)
    ]
    note = f"Bins of {seconds_text(float(edges_s[1] - edges_s[0]))}."
    legend = [LegendEntry("requests per second", SIMULATED, (0,))]
    return Chart("arrivals", "Arrivals over time", [drawn], layout, legend, ("time", "req/s"), rows, note)


def gap_chart(trace: Trace) -> list[Chart]:
    """CDF of the gaps between arrivals; none for a trace of one request."""
    gaps_s = np.diff(trace.arrival_ps) / PS_PER_S
    if not gaps_s.size:
        return []
    apart_s = gaps_s[gaps_s > 0]
    is_log = apart_s.size > 0 and apart_s.max() > 10 * apart_s.min()
    x, share = cdf_points(apart_s if is_log else gaps_s)
    tied = 1 - apart_s.size / gaps_s.size
    drawn = line("gaps", x, tied + share * (1 - tied) if is_log else share, SIMULATED)
    drawn["line"] |= {"shape": "hv"}
    drawn["hovertemplate"] = "%{y:.1%} of gaps within %{x:.3~g} s<extra></extra>"
    layout = _cdf_layout("gap between arrivals (s)", "share of gaps")
    layout["xaxis"] |= {"tickformat": "~g"}  # no 10m, which looks like minutes
    if not is_log:
        layout["xaxis"] |= {"type": "linear", "dtick": None, "rangemode": "tozero"}
    rows = [[_percentile_name(p), seconds_text(float(np.percentile(gaps_s, p)))] for p in _TABLE_PERCENTILES]
    note = f"{ratio_text(tied)} of the gaps are 0." if tied else ""
    legend = [LegendEntry("gaps", SIMULATED, (0,))]
    return [Chart("gaps", "Gaps between arrivals, CDF", [drawn], layout, legend, ("percentile", "gap"), rows, note)]


def length_chart(trace: Trace) -> Chart:
    """CDFs of prompt and output lengths."""
    sides = (("prompt", SIMULATED, trace.num_prompt_tokens), ("output", MEASURED, trace.num_output_tokens))
    data, legend = [], []
    for index, (name, color, lengths) in enumerate(sides):
        x, share = cdf_points(lengths.astype(np.float64))
        drawn = line(name, x, share, color)
        drawn["hovertemplate"] = f"%{{y:.1%}} of {name}s within %{{x:,.0f}} tokens<extra></extra>"
        data.append(drawn)
        legend.append(LegendEntry(name, color, (index,)))
    rows = [
        [_percentile_name(p), *(f"{np.percentile(lengths, p):,.0f}" for _, _, lengths in sides)]
        for p in _TABLE_PERCENTILES
    ]
    layout = _cdf_layout("tokens", "share of requests")
    header = ("percentile", "prompt", "output")
    note = drawn_note([Drawn(len(data[0]["x"]), trace.num_requests)], "requests", "evenly by rank")
    return Chart("lengths", "Prompt and output lengths, CDF", data, layout, legend, header, rows, note)


def lru_chart(sharing: Mapping[str, Any]) -> Chart:
    """Hit ratio of an LRU cache by capacity, with the ceiling."""
    points = sharing["lru_hits"]
    capacities = np.array([point["capacity_blocks"] for point in points], dtype=np.float64)
    ratios = np.array([point["hit_block_ratio"] for point in points])
    ceiling = sharing["hit_block_ratio"]
    drawn = line("LRU", capacities, ratios, SIMULATED)
    drawn["hovertemplate"] = "%{y:.1%} with %{x:,.0f} blocks<extra></extra>"
    limit = line("infinite", capacities[[0, -1]], np.array([ceiling, ceiling]), NEUTRAL, dash="dash")
    layout = layout_of(320)
    layout["xaxis"] |= capacity_axis(sharing["block_tokens"], float(capacities[0]), float(capacities[-1]))
    layout["yaxis"] |= {"title": {"text": "hit blocks"}, "tickformat": ".0%", "rangemode": "tozero"}
    rows = [[f"{point['capacity_blocks']:,}", ratio_text(point["hit_block_ratio"])] for point in points]
    legend = [LegendEntry("LRU, exact", SIMULATED, (0,)), LegendEntry("infinite cache", NEUTRAL, (1,))]
    note = "One request after the other, partial blocks included. Starts at the longest request."
    return Chart("lru", "What an LRU cache hits", [drawn, limit], layout, legend, ("blocks", "hits"), rows, note)


def reuse_chart(key: str, title: str, unit: str, buckets: Sequence[Mapping[str, int]]) -> Chart:
    """References by how far back the one before to the same block is, in powers of two."""
    labels = [f"≤ {bucket['up_to']:,}" if bucket["up_to"] else "at once" for bucket in buckets]
    counts = np.array([bucket["num_references"] for bucket in buckets], dtype=np.float64)
    bars: Figure = {
        "type": "bar",
        "name": "references",
        "x": labels,
        "y": rounded(counts),
        "marker": {"color": SIMULATED},
        "hovertemplate": f"%{{y:,.0f}} references %{{x}} {unit}<extra></extra>",
    }
    layout = layout_of(320)
    layout["xaxis"] |= {"type": "category", "tickangle": -45, "title": {"text": f"{title.lower()} ({unit})"}}
    layout["yaxis"] |= {"title": {"text": "block references"}}
    rows = [[label, count_text(count)] for label, count in zip(labels, counts.tolist(), strict=True)]
    legend = [LegendEntry("references", SIMULATED, (0,))]
    return Chart(
        key,
        title,
        [bars],
        layout,
        legend,
        (f"{title.lower()} ({unit})", "references"),
        rows,
        "First references left out.",
    )


def _rates(times_s: NDArray[np.float64], num_bins: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Edges of equal bins, and requests per second in each."""
    end_s = float(times_s[-1]) or 1.0
    counts, edges_s = np.histogram(times_s, bins=num_bins, range=(0, end_s))
    return edges_s, counts / (end_s / num_bins)


def _cdf_layout(x_title: str, y_title: str) -> Figure:
    layout = layout_of(320)
    layout["xaxis"] |= {"title": {"text": x_title}, "type": "log", "dtick": 1, "tickformat": "~s"}
    layout["yaxis"] |= {"title": {"text": y_title}, "tickformat": ".0%", "range": [0, 1.02]}
    return layout


def _percentile_name(percentile: int) -> str:
    return f"p{percentile}" if percentile < 100 else "max"
