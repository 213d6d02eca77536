"""Charts over time: what the pool holds, and how many requests wait and run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvtwin.formatting import NOTHING, count_text, seconds_text
from kvtwin.report.figure import Chart, Figure, LegendEntry, Side, line, panels
from kvtwin.report.series import drawn_note, extreme_rows, longest, notes, rows_at, step_times_s
from kvtwin.store import Run

REFERENCED, CACHED, FREE = "#0d9488", "#7dd3c0", "rgba(148,163,184,.28)"

_TABLE_MOMENTS = 25


def kv_use(sides: Sequence[Side]) -> Chart:
    """Blocks over time, stacked: referenced, cached (evictable), free. One panel a side, same scales; first repeat."""
    states = [("referenced", REFERENCED), ("cached", CACHED)]
    bounded = all(side.runs[0].summary["pool"]["num_blocks"] is not None for side in sides)
    states += [("free", FREE)] if bounded else []
    data: list[Figure] = []
    cut = []
    for panel, side in enumerate(sides):
        run = side.runs[0]
        rows, times_s = extreme_rows(run.steps["num_referenced_blocks"]), step_times_s(run)
        for state, color in states:
            area = line(f"{side.name}, {state}", times_s[rows], run.steps[f"num_{state}_blocks"][rows], color, panel)
            area["line"] |= {"width": 0, "shape": "hv"}
            data.append(area | {"stackgroup": str(panel), "fillcolor": color})
        cut.append(drawn_note(rows.size, times_s.size, "steps", "lowest and highest use of each part of the run"))
    layout = panels([f"{side.name} (blocks)" for side in sides], _end_s(sides))
    legend = [
        LegendEntry(state, color, tuple(range(index, len(data), len(states))))
        for index, (state, color) in enumerate(states)
    ]
    columns = [(side, f"num_{state}_blocks", f"{side.name}, {state}") for side in sides for state, _ in states]
    header, rows_text = _moments(sides, columns)
    return Chart("kv-use", "KV blocks over time", data, layout, legend, header, rows_text, notes(*cut))


def load(sides: Sequence[Side]) -> Chart:
    """Requests waiting and running, and preemptions so far, over time; the first repeat of each side."""
    series = (("num_waiting", "waiting"), ("num_running", "running"), ("num_preemptions", "preemptions so far"))
    data: list[Figure] = []
    cut = []
    for panel, (column, label) in enumerate(series):
        for side in sides:
            times_s, values = step_times_s(side.runs[0]), _load_column(side.runs[0], column)
            rows = extreme_rows(values)
            drawn = line(f"{side.name}, {label}", times_s[rows], values[rows], side.color, panel, opacity=0.8)
            drawn["line"] |= {"shape": "hv", "width": 1.5}
            data.append(drawn)
            cut.append(drawn_note(rows.size, times_s.size, "steps", "lowest and highest of each part of the run"))
    layout = panels([label for _, label in series], _end_s(sides))
    legend = [
        LegendEntry(side.name, side.color, tuple(range(index, len(data), len(sides))))
        for index, side in enumerate(sides)
    ]
    columns = [(side, column, f"{side.name}, {label}") for column, label in series for side in sides]
    header, rows_text = _moments(sides, columns)
    return Chart("load", "Queue, batch and preemptions over time", data, layout, legend, header, rows_text, notes(*cut))


def _load_column(run: Run, column: str) -> NDArray[np.int64]:
    values = run.steps[column]
    return np.cumsum(values) if column == "num_preemptions" else values


def _moments(sides: Sequence[Side], columns: Sequence[tuple[Side, str, str]]) -> tuple[list[str], list[list[str]]]:
    """The same series as text at evenly spaced moments."""
    at_s = np.linspace(0, _end_s(sides), _TABLE_MOMENTS)
    texts = [[seconds_text(moment) for moment in at_s.tolist()]]
    texts += [_texts_at(side.runs[0], column, at_s) for side, column, _ in columns]
    return ["time", *(label for _, _, label in columns)], [list(row) for row in zip(*texts, strict=True)]


def _texts_at(run: Run, column: str, at_s: NDArray[np.float64]) -> list[str]:
    if not run.steps["start_s"].size:
        return [NOTHING] * at_s.size
    return [count_text(value) for value in _load_column(run, column)[rows_at(step_times_s(run), at_s)].tolist()]


def _end_s(sides: Sequence[Side]) -> float:
    return longest([side.runs[0] for side in sides])
