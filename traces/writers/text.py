"""What all writers share: how times, rows and lines become text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import BinaryIO

from traces.readers.fields import PS_PER_S
from traces.schema import Trace

_LINES_AT_ONCE = 4096


def write_lines(file: BinaryIO, lines: Iterable[str]) -> None:
    """Write lines as UTF-8, each with its newline."""
    rest = iter(lines)
    while batch := list(islice(rest, _LINES_AT_ONCE)):
        file.write(("\n".join(batch) + "\n").encode())


def decimal_text(time_ps: int, ps_per_unit: int = PS_PER_S) -> str:
    """A time as a decimal number of units, exactly."""
    units, rest_ps = divmod(time_ps, ps_per_unit)
    digits = len(str(ps_per_unit)) - 1
    return f"{units}.{rest_ps:0{digits}d}".rstrip("0").rstrip(".")


def arrivals(trace: Trace, ps_per_unit: int = PS_PER_S) -> list[str]:
    """The arrival times as exact decimal numbers of units."""
    return [decimal_text(arrival_ps, ps_per_unit) for arrival_ps in trace.arrival_ps.tolist()]


def csv_lines(header: str, *columns: Iterable[object]) -> Iterator[str]:
    """A header, then a line a row."""
    yield header
    for row in zip(*columns, strict=True):
        yield ",".join(map(str, row))
