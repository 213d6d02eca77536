"""Arrivals from times in seconds and picoseconds: exact, and wider than 64 bits until an origin is taken off."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from core.units import NEVER_PS
from traces.ragged import IntArray
from traces.readers.bad_rows import BadRow, BadRows, require_rows
from traces.readers.csv_columns import MISSING_S
from traces.readers.csv_table import Rows
from traces.readers.fields import INT64_MAX, PS_PER_S
from traces.readers.source import Source

_MAX_SPAN_S = INT64_MAX // PS_PER_S - 1
_LATEST_S = NEVER_PS // PS_PER_S - 1  # that can be simulated


class Arrivals(NamedTuple):
    """Arrivals of the rows that are kept, and the other values of these rows, a column each."""

    arrival_ps: IntArray
    values: tuple[IntArray, ...]


def since_first(source: Source, time_column: str, rows: Rows, bad_rows: BadRows) -> Arrivals:
    """The earliest row arrives at 0. The first two values of `rows` are seconds and picoseconds on any clock.

    A row later than 106 days after the earliest, which 64 bits of picoseconds cannot tell, is a bad row (`too_late`).
    """
    whole_s, rest_ps = rows.values[:2]
    told = np.flatnonzero(whole_s != MISSING_S)
    first = told[np.lexsort((rest_ps[told], whole_s[told]))[0]] if len(told) else 0
    return _since(int(whole_s[first]), int(rest_ps[first]), source, time_column, rows, bad_rows)


def on_own_clock(source: Source, time_column: str, rows: Rows, bad_rows: BadRows) -> Arrivals:
    """Times keep the file's origin, unless one lies beyond the 53 days that can be simulated: then the earliest row
    arrives at 0.

    A row without a time arrives with the row before it in the file, and at 0 if it is the first.
    """
    if rows.values[0].max() > _LATEST_S:
        return since_first(source, time_column, rows, bad_rows)
    return _since(0, 0, source, time_column, rows, bad_rows)


def _since(origin_s: int, origin_ps: int, source: Source, time_column: str, rows: Rows, bad_rows: BadRows) -> Arrivals:
    whole_s, rest_ps, *values = rows.values
    is_told = whole_s != MISSING_S
    seconds = np.where(is_told, whole_s - origin_s, 0)
    is_late = seconds > _MAX_SPAN_S
    for row in np.flatnonzero(is_late).tolist():
        shown = f"{int(seconds[row]) / 86_400:.1f} days after the first"
        expected = "times that do not span more than 106 days (is a date wrong?)"
        bad_rows.handle(source, int(rows.line_numbers[row]), BadRow("too_late", time_column, shown, expected))
    require_rows(source, int((~is_late).sum()), bad_rows)
    if is_late.any():
        seconds, rest_ps, is_told, *values = (column[~is_late] for column in (seconds, rest_ps, is_told, *values))
    seconds *= PS_PER_S
    seconds += np.where(is_told, rest_ps - origin_ps, 0)
    return Arrivals(_filled(seconds, is_told), tuple(values))


def _filled(arrival_ps: IntArray, is_told: np.typing.NDArray[np.bool_]) -> IntArray:
    """Rows that tell no time take that of the row before."""
    if is_told.all():
        return arrival_ps
    last_told = np.maximum.accumulate(np.where(is_told, np.arange(len(is_told)), -1))
    filled: IntArray = np.where(last_told >= 0, arrival_ps[last_told], 0)
    return filled
