"""What a trace is like in figures: arrivals, lengths, sessions, oddities. Percentiles are numpy's linear ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.ragged import IntArray
from traces.schema import Trace

PS_PER_S = 10**12


@dataclass(frozen=True)
class Distribution:
    """Of one quantity over requests (or turns, or pauses)."""

    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float
    total: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Distribution:
        """Of at least one value."""
        p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
        bounds = values.min().item(), values.max().item()
        return cls(float(values.mean()), p50, p90, p99, *bounds, values.sum().item())


@dataclass(frozen=True)
class Arrivals:
    """When requests come. `gap_cv`: standard deviation over mean of the gaps, 1 for a Poisson process."""

    span_s: float
    mean_rate_rps: float | None  # requests over the span; None where all arrive at once
    gap_mean_s: float | None
    gap_cv: float | None
    gap_max_s: float | None
    num_distinct_times: int
    num_ties: int  # requests that arrive with the one before


@dataclass(frozen=True)
class Sessions:
    """Conversations: requests of one session, or linked as turns."""

    num_sessions: int
    turns: Distribution
    think_time_s: Distribution | None


def arrivals_of(trace: Trace) -> Arrivals:
    gaps_s = np.diff(trace.arrival_ps) / PS_PER_S
    mean_s = float(gaps_s.mean()) if len(gaps_s) else 0.0
    return Arrivals(
        span_s=trace.span_s,
        mean_rate_rps=trace.num_requests / trace.span_s if trace.span_s else None,
        gap_mean_s=mean_s if len(gaps_s) else None,
        gap_cv=float(gaps_s.std()) / mean_s if mean_s else None,
        gap_max_s=float(gaps_s.max()) if len(gaps_s) else None,
        num_distinct_times=len(np.unique(trace.arrival_ps)),
        num_ties=int(np.count_nonzero(gaps_s == 0)),
    )


def sessions_of(trace: Trace) -> Sessions | None:
    """None for a trace without sessions."""
    if trace.session_id is None and trace.parent is None:
        return None
    _, num_turns = np.unique(conversations(trace), return_counts=True)
    think_ps = np.array([], dtype=np.int64) if trace.think_time_ps is None else trace.think_time_ps
    think_s = think_ps[think_ps >= 0] / PS_PER_S
    return Sessions(len(num_turns), Distribution.of(num_turns), Distribution.of(think_s) if len(think_s) else None)


def conversations(trace: Trace) -> IntArray:
    """A number for each request, equal for those that belong together: by session, or as turns of one another.

    Numbers count from 0 by first appearance, `[num_requests]`.
    """
    root = np.arange(trace.num_requests)
    if trace.parent is not None:
        root = np.where(trace.parent >= 0, trace.parent, root)
        while (root != root[root]).any():
            root = root[root]
    if trace.session_id is not None:
        _, first, inverse = np.unique(trace.session_id[root], return_index=True, return_inverse=True)
        root = np.where(trace.session_id[root] < 0, root, first[inverse])
    _, first, inverse = np.unique(root, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    numbers: IntArray = rank[inverse]
    return numbers


def num_requests_by_value(column: IntArray, most: int = 12) -> dict[int, int]:
    """How many requests have each of the `most` most frequent values, most frequent first."""
    values, counts = np.unique(column, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:most]
    return dict(zip(values[order].tolist(), counts[order].tolist(), strict=True))


def log2_histogram(values: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """(upper bound, count) for values from 0 on: 0, 1, 2, 3–4, 5–8, …; bounds without values are left out."""
    above = np.maximum(np.ceil(np.log2(np.maximum(values, 1))), 0).astype(np.int64)
    bounds, counts = np.unique(np.where(values <= 0, 0, 2**above), return_counts=True)
    return list(zip(bounds.tolist(), counts.tolist(), strict=True))


def num_duplicate_rows(trace: Trace) -> int:
    """Requests that equal an earlier one in every column."""
    columns = np.column_stack([column for name, column in trace.columns() if name != "parent"])
    _, inverse, counts = np.unique(columns, axis=0, return_inverse=True, return_counts=True)
    inverse = inverse.reshape(-1)
    suspects = np.flatnonzero(counts[inverse] > 1)
    if trace.hash_ids is None and trace.prompt_segments is None:
        return int((counts - 1).sum())
    prompts = trace.hash_ids or trace.prompt_segments
    assert prompts is not None
    return len(suspects) - len({(int(inverse[row]), prompts.row(row).tobytes()) for row in suspects.tolist()})


def oddities_of(trace: Trace) -> list[str]:
    """What may surprise whoever uses the trace, a line each."""
    return list(_oddities(trace))


def _oddities(trace: Trace) -> Iterator[str]:
    arrivals = arrivals_of(trace)
    num = trace.num_requests
    if trace.span_s == 0 and num > 1:
        yield "all requests arrive at once"
    elif arrivals.num_ties > num // 2:
        step_s = float(np.median(np.diff(np.unique(trace.arrival_ps)))) / PS_PER_S
        yield (
            f"times are coarse: {arrivals.num_distinct_times:,} different ones for {num:,} requests, about"
            f" {step_s:.3g} s apart; the gaps (CV {arrivals.gap_cv:.2f}) tell of the clock, not of the users"
        )
    elif arrivals.num_ties:
        yield f"requests that arrive with the one before: {arrivals.num_ties:,} (they keep the file's order)"
    if trace.num_unsorted_rows:
        yield f"rows that the file has below a later one: {trace.num_unsorted_rows:,} (sorted by arrival)"
    num_duplicates = num_duplicate_rows(trace)
    if num_duplicates:
        yield f"exact duplicates of an earlier row: {num_duplicates:,} (kept)"
