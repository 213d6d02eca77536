"""Write a trace in any format that has a writer, whole or not at all; and what a format cannot carry."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from core.errors import InputError
from core.whole_file import whole_file
from traces.readers.own_row import OPTIONAL_KEYS
from traces.schema import Trace
from traces.writers import azure, burstgpt, libcachesim_csv, mooncake, mooncake_sessions, own, parquet, vidur


class TargetFormat(NamedTuple):
    """A format to write: what of a trace it carries beside times, and how fine those are."""

    name: str
    description: str
    carries: frozenset[str]
    resolution_ps: int
    write: Callable[[Trace, BinaryIO], None]


TARGETS = tuple(
    TargetFormat(writer.NAME, writer.DESCRIPTION, writer.CARRIES, writer.RESOLUTION_PS, writer.write)
    for writer in (own, mooncake, mooncake_sessions, azure, vidur, burstgpt, libcachesim_csv, parquet)
)


def target_format(name: str) -> TargetFormat:
    """The format of that name; raises InputError, listing all, if there is none."""
    for target in TARGETS:
        if target.name == name:
            return target
    known = "; ".join(f"{target.name} ({target.description})" for target in TARGETS)
    raise InputError(f"no format {name!r} to write; expected one of: {known}")


def write_trace(trace: Trace, path: str | Path, notes: Mapping[str, Any] | None = None) -> None:
    """Write `trace` to `path` in kvtwin's own format, packed where the name ends in .gz.

    `notes` (credit, how it was made, …) go into the header and are not read back. The file appears whole or not at
    all: it is written under a temporary name and renamed.
    """
    _write(Path(path), partial(own.write, trace, notes=notes or {}))


def write_trace_as(format_name: str, trace: Trace, path: str | Path) -> None:
    """The same in another format. Raises InputError if there is no such format, or none of its kind can be made."""
    _write(Path(path), partial(target_format(format_name).write, trace))


def not_carried(trace: Trace, format_name: str) -> list[str]:
    """What `trace` has and a file of that format will not have, in words."""
    return list(_not_carried(trace, target_format(format_name)))


def _not_carried(trace: Trace, target: TargetFormat) -> Iterator[str]:
    if "lengths" not in target.carries:
        yield "lengths, and which blocks belong to one request"
    if trace.has_prefix_information and "hash_ids" not in target.carries:
        yield "which prompts share a prefix"
    elif trace.prompt_segments is not None and "prompt_segments" not in target.carries:
        yield "shared text that does not fill a hash block (--block-size says how large those are)"
    if trace.output_segments is not None and "output_segments" not in target.carries:
        yield "recorded answers (what later prompts share with them beyond earlier prompts)"
    for key, optional in OPTIONAL_KEYS.items():
        column = getattr(trace, optional.column)
        if column is not None and key not in target.carries and (column != optional.default).any():
            yield key
    if "parent" in target.carries and "times_of_turns" not in target.carries and _num_turns_by_the_clock(trace):
        yield "when turns were sent whose think time is not told (they follow the answer before them at once)"
    if trace.arrival_ps[0] and "origin" not in target.carries:
        yield "the time before the first arrival"
    if (trace.arrival_ps % target.resolution_ps).any():
        yield f"times finer than {target.resolution_ps / 1e12:g} s (rounded down)"


def _num_turns_by_the_clock(trace: Trace) -> int:
    """Turns that arrive when the trace says, whenever the answer before them comes."""
    if trace.parent is None or trace.think_time_ps is None:
        return 0
    return int(((trace.parent >= 0) & (trace.think_time_ps < 0)).sum())


def _write(path: Path, write: Callable[[BinaryIO], None]) -> None:
    if path.is_dir():
        raise InputError(f"{path} is a folder; expected a file to write to")
    try:
        with whole_file(path) as temporary, temporary.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(
                    fileobj=file, mode="wb", filename="", mtime=0
                ) as packed:  # the same bytes every time
                    write(packed)  # type: ignore[arg-type]  # a binary file in all that is used of it
            else:
                write(file)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); expected a file to write") from error
