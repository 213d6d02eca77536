"""Dates and times of day in CSV traces, read exactly."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from traces.ragged import IntArray
from traces.readers.bad_rows import BadRow
from traces.readers.csv_cells import BoolArray, Cells, digits, fractions
from traces.readers.csv_columns import NUM_PLACES, Parsed

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,12}))?(?:Z|\+00:00)?", re.ASCII)
_CLOCK = (11, 14, 17)  # where hours, minutes and seconds begin in a timestamp
_ZONE = np.frombuffer(b"+00:00", np.uint8)


class WallClock:
    """A date and a time of day (UTC), such as 2023-11-16 18:17:03.9799600: seconds since the year 1 and picoseconds."""

    def parse(self, name: str, text: str) -> tuple[int, int]:
        match = _TIMESTAMP.fullmatch(text)
        day = _day(match[1]) if match else None
        if match is None or day is None or not (int(match[2]) < 24 and int(match[3]) < 60 and int(match[4]) < 60):
            raise BadRow("bad_time", name, text, "a time such as 2023-11-16 18:17:03.9799600 (UTC)")
        seconds = ((day * 24 + int(match[2])) * 60 + int(match[3])) * 60 + int(match[4])
        return seconds, int((match[5] or "0").ljust(NUM_PLACES, "0"))

    def parse_block(self, cells: Cells, column: int) -> Parsed:
        starts, ends = cells.bounds(column)
        texts = cells.data[np.minimum(starts[:, None] + np.arange(19), ends[:, None])]
        is_plain = (ends - starts >= 19) & (texts[:, [10, 13, 16]] == np.frombuffer(b" ::", np.uint8)).all(axis=1)
        clock = [digits(cells.data, np.minimum(starts + at, ends), np.minimum(starts + at + 2, ends)) for at in _CLOCK]
        for (values, is_number), limit in zip(clock, (24, 60, 60), strict=True):
            is_plain &= is_number & (values < limit)
        zone_ends = ends - 6 * _has_zone(cells, starts, ends)
        points = np.minimum(starts + 19, zone_ends)
        rest_ps, is_fraction = fractions(cells.data, points, zone_ends, NUM_PLACES)
        is_plain &= is_fraction & ((points == zone_ends) | (cells.data[points] == b"."[0]))
        days, is_day = _days(texts[:, :10])
        seconds = ((days * 24 + clock[0][0]) * 60 + clock[1][0]) * 60 + clock[2][0]
        return Parsed((seconds, rest_ps), is_plain & is_day)


def _has_zone(cells: Cells, starts: IntArray, ends: IntArray) -> BoolArray:
    last = cells.data[np.clip(ends[:, None] - 6 + np.arange(6), starts[:, None], ends[:, None])]
    has_zone: BoolArray = (ends - starts >= 25) & (last == _ZONE).all(axis=1)
    return has_zone


def _days(dates: npt.NDArray[np.uint8]) -> tuple[IntArray, BoolArray]:
    """Days since the year 1 of dates as text, uint8 `[num_rows, 10]`, and whether they are dates."""
    distinct, which = np.unique(np.ascontiguousarray(dates).view("S10").ravel(), return_inverse=True)
    days = [_day(text.decode("ascii", "replace")) for text in distinct.tolist()]
    known = np.array([-1 if day is None else day for day in days], dtype=np.int64)[which]
    return known, known >= 0


@lru_cache(maxsize=32)
def _day(text: str) -> int | None:
    if not _DATE.fullmatch(text):  # fromisoformat takes weeks, too
        return None
    try:
        return date.fromisoformat(text).toordinal()
    except ValueError:
        return None
