"""Latency charts: the CDF of each side, and simulated against measured request by request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvtwin.agreement import relative_error
from kvtwin.comparison import LATENCIES, median_latency, pair_requests
from kvtwin.formatting import NOTHING, error_text, metric_label, seconds_text
from kvtwin.report.figure import NEUTRAL, SIMULATED, Chart, Figure, LegendEntry, Side, layout_of, line, rounded
from kvtwin.report.series import Drawn, cdf_points, drawn_note, notes, sampled_rows
from kvtwin.store import Run

Floats = NDArray[np.float64]

_TABLE_PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
_TABLE_REQUESTS = 200


def latency_cdf(name: str, sides: Sequence[Side]) -> Chart:
    """The CDF of one latency: a line per run, repeats of the engine in one colour."""
    latency, label = LATENCIES[name], metric_label(name)
    data: list[Figure] = []
    legend, cut = [], []
    for side in sides:
        first = len(data)
        for run in side.runs:
            values = latency(run.request_columns())
            x, y = cdf_points(values)
            data.append(line(side.name, x, y, side.color, opacity=1 if len(side.runs) == 1 else 0.6))
            data[-1]["hovertemplate"] = "%{y:.1%} within %{x:.3~f} s"
            cut.append(Drawn(x.size, int(np.count_nonzero(~np.isnan(values)))))
        legend.append(LegendEntry(_side_label(side), side.color, tuple(range(first, len(data)))))
    pooled = [np.concatenate([latency(run.request_columns()) for run in side.runs]) for side in sides]
    rows = [
        [f"p{percentile}" if percentile < 100 else "max", *(_percentile_text(values, percentile) for values in pooled)]
        for percentile in _TABLE_PERCENTILES
    ]
    layout = layout_of(300)
    layout["xaxis"] |= {"title": {"text": f"{label} (s)"}}
    layout["yaxis"] |= {"title": {"text": "share of requests"}, "tickformat": ".0%", "range": [0, 1.02]}
    header = ["percentile", *(side.name for side in sides)]
    note = drawn_note(cut, "requests", "evenly by rank")
    return Chart(f"cdf-{name}", f"{label}, CDF", data, layout, legend, header, rows, note)


def latency_scatter(name: str, simulated: Run, engine_runs: Sequence[Run]) -> Chart:
    """Each request's simulated against its measured latency (median of the repeats), with the line y = x."""
    latency, label = LATENCIES[name], metric_label(name)
    ours, theirs = simulated.request_columns(), engine_runs[0].request_columns()
    sim_rows, measured_rows = pair_requests(ours, theirs)
    x, y = median_latency(engine_runs, latency)[measured_rows], latency(ours)[sim_rows]
    defined = ~np.isnan(x) & ~np.isnan(y)
    x, y, ids = x[defined], y[defined], ours.request_id[sim_rows][defined]
    low, high = _shared_range(np.concatenate([x, y]))
    drawn = sampled_rows(x.size)
    diagonal = line("y = x", np.array([low, high]), np.array([low, high]), NEUTRAL, dash="dash")
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": "request",
        "x": rounded(x[drawn]),
        "y": rounded(y[drawn]),
        "customdata": ids[drawn].tolist(),
        "marker": {"color": SIMULATED, "size": 7, "opacity": 0.55},
        "hovertemplate": "request %{customdata}<br>measured %{x:.3~f} s<br>simulated %{y:.3~f} s<extra></extra>",
    }
    layout = layout_of(340)
    layout["xaxis"] |= {"title": {"text": f"measured {label} (s)"}, "range": [low, high]}
    layout["yaxis"] |= {"title": {"text": f"simulated {label} (s)"}, "range": [low, high]}
    layout["hovermode"] = "closest"
    legend = [LegendEntry("request", SIMULATED, (1,)), LegendEntry("y = x", NEUTRAL, (0,))]
    return Chart(
        f"scatter-{name}",
        f"{label}, request by request",
        [diagonal | {"hoverinfo": "skip"}, points],
        layout,
        legend,
        ("request", "simulated", "measured", "error"),
        _worst_rows(ids, y, x),
        notes(
            drawn_note([Drawn(drawn.size, x.size)], "requests", "evenly spread"),
            drawn_note([Drawn(min(x.size, _TABLE_REQUESTS), x.size)], "requests in the table", "the largest errors"),
        ),
    )


def _worst_rows(ids: NDArray[np.int64], simulated: Floats, measured: Floats) -> list[list[str]]:
    order = np.argsort(-np.abs(simulated - measured), kind="stable")[:_TABLE_REQUESTS]
    pairs = zip(ids[order].tolist(), simulated[order].tolist(), measured[order].tolist(), strict=True)
    return [
        [str(number), seconds_text(ours), seconds_text(theirs), error_text(relative_error(ours, theirs))]
        for number, ours, theirs in pairs
    ]


def _percentile_text(values: Floats, percentile: int) -> str:
    defined = values[~np.isnan(values)]
    return seconds_text(float(np.percentile(defined, percentile))) if defined.size else NOTHING


def _side_label(side: Side) -> str:
    return side.name if len(side.runs) == 1 else f"{side.name} ({len(side.runs)} repeats)"


def _shared_range(values: Floats) -> tuple[float, float]:
    """One range for both axes, so that y = x is the diagonal; a little wider than the values, never below 0."""
    if not values.size:
        return 0.0, 1.0
    margin = 0.06 * float(np.ptp(values)) or 0.5 * float(values.max()) or 1.0
    return max(0.0, float(values.min()) - margin), float(values.max()) + margin
