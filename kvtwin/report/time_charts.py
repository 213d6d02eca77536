"""Charts over time: what the pool holds, what of it is wasted, and how many requests wait and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvtwin.formatting import NOTHING, count_text, seconds_text
from kvtwin.report.figure import Chart, Figure, LegendEntry, Side, line, panels
from kvtwin.report.series import Drawn, drawn_note, extreme_rows, longest, notes, rows_at, step_times_s
from kvtwin.store import Run

REFERENCED, CACHED, FREE = "#0d9488", "#7dd3c0", "rgba(148,163,184,.28)"
RESERVED, INTERNAL, EXTERNAL = "#a78bfa", "#f59e0b", "#dc2626"

_TABLE_MOMENTS = 25
_WASTE_NOTE = "Reserved: will hold a token later. Internal: of a sequence, never will. External: of none, serving none."
_OF_EACH_PART = "lowest and highest of each part of the run"


class _Area(NamedTuple):
    """One layer of a stack: a column of `steps.npz`, how it is called, its colour."""

    column: str
    label: str
    color: str


def kv_use(sides: Sequence[Side]) -> Chart:
    """Blocks over time, stacked: referenced, cached (evictable), free. One panel a side, same scales; first repeat."""
    areas = [
        _Area("num_referenced_blocks", "referenced", REFERENCED),
        _Area("num_cached_blocks", "cached", CACHED),
        _Area("num_free_blocks", "free", FREE),
    ]
    is_bounded = all(side.runs[0].summary["pool"]["num_blocks"] is not None for side in sides)
    ranked = [side.runs[0].steps["num_referenced_blocks"] for side in sides]
    return _stacked("kv-use", "KV blocks over time", "blocks", sides, areas if is_bounded else areas[:2], ranked)


def waste(sides: Sequence[Side]) -> Chart | None:
    """Slots that hold no token over time, stacked: reserved, internal, external. None for runs that did not count them.

    `docs/allocation.md` says what the three are.
    """
    areas = [
        _Area("num_reserved_tokens", "reserved", RESERVED),
        _Area("num_internal_tokens", "internal", INTERNAL),
        _Area("num_external_tokens", "external", EXTERNAL),
    ]
    if not all(area.column in side.runs[0].steps for side in sides for area in areas):
        return None
    ranked = [np.sum([side.runs[0].steps[area.column] for area in areas], axis=0) for side in sides]
    chart = _stacked("waste", "Wasted KV slots over time", "token slots", sides, areas, ranked)
    return replace(chart, note=notes(_WASTE_NOTE, chart.note))


def _stacked(
    key: str,
    title: str,
    unit: str,
    sides: Sequence[Side],
    areas: Sequence[_Area],
    ranked: Sequence[NDArray[np.int64]],
) -> Chart:
    """One panel a side. Of long runs the steps are drawn in which `ranked`, a column a side, is lowest and highest."""
    data: list[Figure] = []
    cut = []
    for panel, (side, ranking) in enumerate(zip(sides, ranked, strict=True)):
        run = side.runs[0]
        rows, times_s = extreme_rows(ranking), step_times_s(run)
        for column, label, color in areas:
            area = line(f"{side.name}, {label}", times_s[rows], run.steps[column][rows], color, panel)
            area["line"] |= {"width": 0, "shape": "hv"}
            data.append(area | {"stackgroup": str(panel), "fillcolor": color})
        cut.append(Drawn(rows.size, times_s.size))
    layout = panels([f"{side.name} ({unit})" for side in sides], _end_s(sides))
    legend = [
        LegendEntry(area.label, area.color, tuple(range(index, len(data), len(areas))))
        for index, area in enumerate(areas)
    ]
    columns = [(side, area.column, f"{side.name}, {area.label}") for side in sides for area in areas]
    header, rows_text = _moments(sides, columns)
    return Chart(key, title, data, layout, legend, header, rows_text, drawn_note(cut, "steps", _OF_EACH_PART))


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
            cut.append(Drawn(rows.size, times_s.size))
    layout = panels([label for _, label in series], _end_s(sides))
    legend = [
        LegendEntry(side.name, side.color, tuple(range(index, len(data), len(sides))))
        for index, side in enumerate(sides)
    ]
    columns = [(side, column, f"{side.name}, {label}") for column, label in series for side in sides]
    header, rows_text = _moments(sides, columns)
    note = drawn_note(cut, "steps", _OF_EACH_PART)
    return Chart("load", "Queue, batch and preemptions over time", data, layout, legend, header, rows_text, note)


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
