"""Read a trace file of any known format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from core.errors import InputError
from traces.readers import azure, burstgpt, libcachesim_csv, mooncake, oracle_general, own, vidur
from traces.readers.source import BadRows, Head, RefuseBadRows, SkipBadRows, Source
from traces.schema import Trace


class Format(NamedTuple):
    """A trace format: its name, how it looks, and its reader."""

    name: str
    description: str
    recognises: Callable[[Head], bool]
    read: Callable[[Source, BadRows], Trace]


FORMATS = (
    Format(own.NAME, own.DESCRIPTION, own.recognises, own.read),
    Format(azure.NAME, azure.DESCRIPTION, azure.recognises, azure.read),
    Format(burstgpt.NAME, burstgpt.DESCRIPTION, burstgpt.recognises, burstgpt.read),
    Format(vidur.NAME, vidur.DESCRIPTION, vidur.recognises, vidur.read),
    Format(libcachesim_csv.NAME, libcachesim_csv.DESCRIPTION, libcachesim_csv.recognises, libcachesim_csv.read),
    Format(oracle_general.NAME, oracle_general.DESCRIPTION, oracle_general.recognises, oracle_general.read),
    Format(mooncake.NAME, mooncake.DESCRIPTION, mooncake.recognises, mooncake.read),
)
_ON_ERROR: dict[str, Callable[[], BadRows]] = {"fail": RefuseBadRows, "skip": SkipBadRows}


def read_trace(path: str | Path, format: str = "auto", on_error: str = "fail") -> Trace:
    """Read `path`, plain or packed (gzip, zstd), as a Trace sorted by arrival; ties keep the file's order.

    `format` is the name of one of FORMATS, or "auto": recognised from the content. A row that is malformed, or has no
    prompt or no output token, raises InputError naming file, line, column, value and what was expected
    (`on_error="fail"`), or is left out and counted by reason in `Trace.num_dropped` (`on_error="skip"`).
    """
    if on_error not in _ON_ERROR:
        raise InputError(f"trace.on_error={on_error!r} is unknown; expected one of {', '.join(_ON_ERROR)}")
    source = Source(Path(path))
    trace = _format_of(source, format).read(source, _ON_ERROR[on_error]())
    trace.validate()
    return trace


def format_name(path: str | Path) -> str:
    """The name of the format that a file is recognised as; raises InputError if it is none of FORMATS."""
    return _format_of(Source(Path(path)), "auto").name


def _format_of(source: Source, name: str) -> Format:
    known = "; ".join(f"{known.name} ({known.description})" for known in FORMATS)
    if name != "auto":
        for candidate in FORMATS:
            if candidate.name == name:
                return candidate
        raise InputError(f"trace.format={name!r} is unknown; expected auto, or one of: {known}")
    head = source.head
    for candidate in FORMATS:
        if candidate.recognises(head):
            return candidate
    start = head.first_line[:60]
    raise InputError(f"{source.path}: format not recognised, it starts with {start!r}; known formats: {known}")
