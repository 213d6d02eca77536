"""Inter-token gaps as spans: so many that grow evenly, of so many sequences; their figures, exact and unexpanded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from core.packing import exact_dot, narrowed
from core.percentiles import PERCENTILES, Summary, named_figures
from core.recorder import UNEVEN, Recorder
from core.units import PS_PER_S

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GapSpans:
    """Row i stands for the gaps `first_ps + growth_ps * k`, k from 0 to `num_steps - 1`, each `multiplicity` times.

    A multiplicity may be negative, to take back what another row counts too much. [num_spans] each, of integers no
    wider than they need be where it is `narrowed`.
    """

    first_ps: Ints
    growth_ps: Ints
    num_steps: Ints
    multiplicity: Ints

    @property
    def last_ps(self) -> Ints:
        return np.asarray(self.first_ps + self.growth_ps.astype(np.int64) * (self.num_steps - 1))

    def where(self, rows: NDArray[np.bool_]) -> GapSpans:
        return self._with(lambda column: column[rows])

    def narrowed(self) -> GapSpans:
        """The same in little memory."""
        return self._with(narrowed)

    def _with(self, change: Callable[[Ints], Ints]) -> GapSpans:
        return GapSpans(*(change(getattr(self, field.name)) for field in fields(self)))

    @property
    def num_gaps(self) -> int:
        return int(np.dot(self.num_steps.astype(np.int64), self.multiplicity))

    @property
    def total_ps(self) -> int:
        """The sum of all gaps."""
        num = self.num_steps.astype(np.int64)
        return exact_dot(self.multiplicity, num * self.first_ps + self.growth_ps * (num * (num - 1) // 2))

    def num_up_to(self, gap_ps: int) -> int:
        """How many gaps are no longer."""
        begun = gap_ps >= self.first_ps
        within = np.floor_divide(np.int64(gap_ps) - self.first_ps, np.maximum(self.growth_ps, 1)) + 1
        num = np.where(self.growth_ps == 0, self.num_steps, np.minimum(within, self.num_steps))
        return int(np.dot(np.where(begun, num, 0), self.multiplicity))


def joined(parts: Sequence[GapSpans]) -> GapSpans:
    """The gaps of all of them: of at least one."""
    return GapSpans(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(GapSpans)))


def gap_spans(recorder: Recorder, since_ps: int = 0) -> GapSpans:
    """The gaps of the plans that the recorder holds, a row or two a plan; the same multiset as
    `core.columns.gap_arrays`. `since_ps`: when the plan before the first one ended.
    """
    num_steps, multiplicity = recorder.plan_column("num_steps"), recorder.plan_column("num_regular_gaps")
    first_ps, growth_ps = recorder.plan_column("first_ps"), recorder.plan_column("growth_ps")
    is_listed = growth_ps == UNEVEN
    pauses_ps = _pauses_ps(recorder, since_ps)
    rows = [_plain_rows(recorder, GapSpans(first_ps, growth_ps, num_steps, multiplicity), pauses_ps, ~is_listed)]
    for plan in np.flatnonzero(is_listed).tolist():
        listed = recorder.uneven_ps[first_ps[plan] : first_ps[plan] + num_steps[plan]]
        num_lost = recorder.lost_decodes.get(plan, 0)
        rows.append(_listed_rows(_ints(listed), pauses_ps[plan], multiplicity[plan], num_lost))
    late_ps = _ints(recorder.late_gaps_ps)
    rows.append(_single(late_ps, np.ones_like(late_ps)))
    found = joined(rows)
    return found.where(found.multiplicity != 0)


def _plain_rows(recorder: Recorder, spans: GapSpans, pause_ps: Ints, plain: NDArray[np.bool_]) -> GapSpans:
    """Of plans whose steps grow evenly. The gap before the first step's end includes the pause before that step."""
    first_ps, last_ps, num_steps, multiplicity = spans.first_ps, spans.last_ps, spans.num_steps, spans.multiplicity
    parts = [spans.where(plain)]
    paused = plain & (pause_ps != 0) & (multiplicity != 0)
    parts.append(_single(first_ps[paused], -multiplicity[paused]))
    parts.append(_single(first_ps[paused] + pause_ps[paused], multiplicity[paused]))
    for plan, num_lost in recorder.lost_decodes.items():
        if plain[plan]:
            pause = pause_ps[plan] if num_steps[plan] == 1 else 0
            parts.append(_single(np.array([last_ps[plan] + pause]), np.array([-num_lost])))
    return joined(parts)


def _listed_rows(gaps_ps: Ints, pause_ps: int, num_gaps: int, num_lost: int) -> GapSpans:
    gaps_ps[0] += pause_ps
    multiplicity = np.full(len(gaps_ps), num_gaps, dtype=np.int64)
    multiplicity[-1] -= num_lost
    return _single(gaps_ps, multiplicity)


def _pauses_ps(recorder: Recorder, since_ps: int) -> Ints:
    """From the end of the plan before to the start of each, [num_plans]; of the first, from `since_ps`."""
    start_ps = recorder.plan_column("start_ps")
    return np.asarray(start_ps - np.append(since_ps, plan_ends_ps(recorder))[: len(start_ps)])


def plan_ends_ps(recorder: Recorder) -> Ints:
    """When the last step of each plan ended, [num_plans]."""
    num_steps, growth_ps = recorder.plan_column("num_steps"), recorder.plan_column("growth_ps")
    first_ps = recorder.plan_column("first_ps")
    duration_ps = first_ps * num_steps + growth_ps * (num_steps * (num_steps - 1) // 2)
    for plan in np.flatnonzero(growth_ps == UNEVEN).tolist():
        place = first_ps[plan]
        duration_ps[plan] = sum(recorder.uneven_ps[place : place + num_steps[plan]])
    return np.asarray(recorder.plan_column("start_ps") + duration_ps)


def _single(gaps_ps: Ints, multiplicity: Ints) -> GapSpans:
    return GapSpans(gaps_ps, np.zeros_like(gaps_ps), np.ones_like(gaps_ps), multiplicity)


def summarize_spans(parts: Sequence[GapSpans]) -> Summary:
    """{mean, p50, p90, p95, p99, max, n} of the gaps of all parts, in seconds: what `core.percentiles` says of them
    expanded, but that the mean is exact. O(spans) for each halving of the range that is left.
    """
    num_gaps = sum(part.num_gaps for part in parts)
    if num_gaps == 0:
        return named_figures(None, [], 0)
    ranked = [_percentile_s(parts, percentile, num_gaps) for percentile in (*PERCENTILES, 100)]
    return named_figures(sum(part.total_ps for part in parts) / (num_gaps * PS_PER_S), ranked, num_gaps)


def _percentile_s(parts: Sequence[GapSpans], percentile: float, num_gaps: int) -> float:
    """Linear, as numpy's: it interpolates from the nearer neighbour."""
    position = percentile / 100 * (num_gaps - 1)
    below = int(np.floor(position))
    low = _ranked_ps(parts, below) / PS_PER_S
    high = _ranked_ps(parts, min(below + 1, num_gaps - 1)) / PS_PER_S
    fraction, distance = position - below, high - low
    return low + distance * fraction if fraction < 0.5 else high - distance * (1 - fraction)


def _ranked_ps(parts: Sequence[GapSpans], rank: int) -> int:
    """The gap of this rank from below, from 0: by halving the range, with ever fewer spans that reach into it."""
    found = [part for part in parts if len(part.first_ps)]
    low, high = min(int(p.first_ps.min()) for p in found), max(int(p.last_ps.max()) for p in found)
    num_below = 0
    while low < high:
        middle = (low + high) // 2
        if num_below + sum(part.num_up_to(middle) for part in found) > rank:
            high = middle
            found = [part.where(part.first_ps <= high) for part in found]
        else:
            low = middle + 1
            ended = [part.last_ps < low for part in found]
            num_below += sum(part.where(rows).num_gaps for part, rows in zip(found, ended, strict=True))
            found = [part.where(~rows) for part, rows in zip(found, ended, strict=True)]
    return low


def _ints(column: object) -> Ints:
    return np.array(column, dtype=np.int64)
