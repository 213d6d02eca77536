"""Several traces as one: what each names for itself (blocks, sessions, tenants) stays apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.errors import InputError
from traces.readers.own_row import OPTIONAL_KEYS
from traces.schema import IntArray, Ragged, Trace

_NUMBERED = ("session_id", "tenant")  # numbers that mean something within one trace only
_DEFAULTS = {optional.column: optional.default for optional in OPTIONAL_KEYS.values()}


def merge(traces: Sequence[Trace]) -> Trace:
    """The requests of all traces by arrival; those that arrive together in the order of `traces`.

    Hash ids, sessions and tenants are renumbered so that two traces never meet in one; a trace without tenants is a
    tenant of its own. Prompts given as text go on sharing what text they share. Raises InputError where one trace
    tells what prompts consist of and another does not, or tells it otherwise, or in blocks of another size.
    """
    if not traces:
        raise InputError("merge: expected at least one trace")
    _check_content(traces)
    offsets = np.cumsum([0, *(trace.num_requests for trace in traces)])
    columns = {name: _column(name, traces, offsets) for name in _column_names(traces)}
    merged = replace(
        traces[0],
        name="+".join(trace.name for trace in traces),
        hash_ids=_hash_ids(traces),
        prompt_segments=_joined([trace.prompt_segments for trace in traces]),
        output_segments=_joined([trace.output_segments for trace in traces]),
        sha256="",
        num_dropped=_summed([trace.num_dropped for trace in traces]),
        licence="; ".join(dict.fromkeys(trace.licence for trace in traces if trace.licence)),
        recipe=None,
        category_names=_category_names(traces),
        num_unsorted_rows=sum(trace.num_unsorted_rows for trace in traces),
        **columns,  # type: ignore[arg-type]  # the names are those of the fields
    )
    return merged.take(np.argsort(merged.arrival_ps, kind="stable"))


def _check_content(traces: Sequence[Trace]) -> None:
    first = traces[0]
    for other in traces[1:]:
        if _content(other) != _content(first):
            raise InputError(
                f"merge: {first.name!r} has {_content(first)}, {other.name!r} has {_content(other)}; hit ratios of such"
                " a mix would mean nothing. Expected the same in all (convert --block-size makes hashes of text)"
            )
    sizes = {trace.hash_block_tokens: trace.name for trace in traces}
    if len(sizes) > 1:
        told = ", ".join(f"{size} tokens in {name!r}" for size, name in sizes.items())
        raise InputError(f"merge: hash blocks of {told}; expected one size in all")


def _content(trace: Trace) -> str:
    if trace.hash_ids is not None:
        return "block hashes"
    if trace.prompt_segments is not None:
        return "prompts as text" + (" and answers as text" if trace.output_segments is not None else "")
    return "no prefix information"


def _column_names(traces: Sequence[Trace]) -> list[str]:
    present = {name for trace in traces for name, _ in trace.columns()}
    return sorted(present | ({"tenant"} if len(traces) > 1 else set()))


def _column(name: str, traces: Sequence[Trace], row_offsets: IntArray) -> IntArray:
    parts = []
    num_names = 0
    category_names = _category_names(traces)
    for trace, row_offset in zip(traces, row_offsets, strict=False):
        column = getattr(trace, name)
        if column is None:
            column = _default(name, trace)
        if name == "category":
            column = _renamed(column, trace.category_names, category_names)
        elif name == "parent":
            column = np.where(column < 0, column, column + row_offset)
        elif name in _NUMBERED:
            known, numbers = np.unique(column[column >= 0], return_inverse=True)
            column = column.copy()
            column[column >= 0] = num_names + numbers
            num_names += len(known)
        parts.append(column)
    return np.concatenate(parts)


def _default(name: str, trace: Trace) -> IntArray:
    """A column for a trace that lacks it. Turns of a trace without think times follow their parents at once."""
    column = np.full(trace.num_requests, _DEFAULTS[name], dtype=np.int64)
    if name == "think_time_ps" and trace.parent is not None:
        column[trace.parent >= 0] = 0
    return column


def _category_names(traces: Sequence[Trace]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for trace in traces for name in trace.category_names))


def _renamed(codes: IntArray, names: Sequence[str], merged_names: Sequence[str]) -> IntArray:
    """Codes for names of one trace as codes for the same names of all."""
    merged_codes = np.array([*(merged_names.index(name) for name in names), -1], dtype=np.int64)
    return merged_codes[codes]  # -1, for none, finds the last entry


def _hash_ids(traces: Sequence[Trace]) -> Ragged | None:
    parts = []
    num_ids = 0
    for trace in traces:
        if trace.hash_ids is None:
            return None
        known, numbers = np.unique(trace.hash_ids.values, return_inverse=True)
        parts.append(Ragged(num_ids + numbers, trace.hash_ids.offsets))
        num_ids += len(known)
    return _joined(parts)


def _joined(parts: Sequence[Ragged | None]) -> Ragged | None:
    """The rows of all parts, one after the other; None if there are none to join."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    lengths = np.concatenate([part.row_lengths for part in present])
    return Ragged(np.concatenate([part.values for part in present]), np.concatenate(([0], np.cumsum(lengths))))


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    reasons = sorted({reason for count in counts for reason in count})
    return {reason: sum(count.get(reason, 0) for count in counts) for reason in reasons}
