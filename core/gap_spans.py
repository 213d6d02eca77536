"""Inter-token gaps as spans: so many that grow evenly, of so many sequences; their figures, exact and unexpanded."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from core.even_plans import EvenPlans, expanded
from core.packing import exact_dot, narrowed
from core.percentiles import PERCENTILES, Ranks, Summary, named_figures
from core.units import PS_PER_S

Ints = NDArray[np.int64]

_MOST_EXPANDED = 1 << 22  # gaps: a hundred megabytes, and a second's work
_NUM_BITS_CUT = 11  # of a 32-bit float's fraction of 23: bins are 1/4096 wide


@dataclass(frozen=True, slots=True)
class GapSpans:
    """Row i stands for the gaps `first_ps + growth_ps * k`, k from 0 to `num_steps - 1`, each `multiplicity` times.

    [num_spans] each, of integers no wider than they need be where it is `narrowed`.
    """

    first_ps: Ints
    growth_ps: Ints
    num_steps: Ints
    multiplicity: Ints

    @property
    def last_ps(self) -> Ints:
        return np.asarray(self.first_ps + self.growth_ps.astype(np.int64) * (self.num_steps - 1))

    def where(self, rows: NDArray[np.bool_] | Ints) -> GapSpans:
        return self._with(lambda column: column[rows])

    def narrowed(self) -> GapSpans:
        """The same in little memory."""
        return self._with(narrowed)

    def _with(self, change: Callable[[Ints], Ints]) -> GapSpans:
        return GapSpans(*(change(getattr(self, field.name)) for field in fields(self)))

    @property
    def num_each(self) -> Ints:
        """How many gaps each row stands for."""
        return self.num_steps.astype(np.int64) * self.multiplicity

    @property
    def num_gaps(self) -> int:
        return int(self.num_each.sum())

    @property
    def total_ps(self) -> int:
        """The sum of all gaps."""
        num = self.num_steps.astype(np.int64)
        return exact_dot(self.multiplicity, num * self.first_ps + self.growth_ps * (num * (num - 1) // 2))

    def num_up_to(self, most_ps: int) -> int:
        """How many gaps are no longer than this."""
        room_ps = most_ps - self.first_ps.astype(np.int64)
        further = room_ps // np.maximum(self.growth_ps, 1).astype(np.int64)
        num = np.where(self.growth_ps == 0, self.num_steps, np.minimum(further + 1, self.num_steps))
        return int((np.where(room_ps < 0, 0, num) * self.multiplicity.astype(np.int64)).sum())

    def expanded(self) -> tuple[Ints, Ints]:
        """The gaps, each once, and how many times each is there."""
        row, place = expanded(self.num_steps)
        return self.first_ps[row] + self.growth_ps.astype(np.int64)[row] * place, self.multiplicity[row]


def joined(parts: Sequence[GapSpans]) -> GapSpans:
    """The gaps of all of them: of at least one."""
    return GapSpans(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(GapSpans)))


def gap_spans(plans: EvenPlans, late_gaps_ps: array[int], since_ps: int = 0) -> GapSpans:
    """The gaps of these plans, a row or a few each, and the late ones; the same multiset as
    `core.columns.gap_arrays`. `since_ps`: when the plan before the first one ended.

    The gap before the end of a plan's first step includes the pause before that step.
    """
    pause_ps = plans.start_ps - np.append(since_ps, plans.end_ps[:-1])[: len(plans)]
    first = (pause_ps != 0) & (plans.num_gaps != 0)
    is_single = plans.num_steps == 1
    last = (plans.num_lost_gaps != 0) & ~(first & is_single)
    num_kept = plans.num_gaps - plans.num_lost_gaps
    rows = [
        GapSpans(
            plans.first_ps + plans.growth_ps * first, plans.growth_ps, plans.num_steps - first - last, plans.num_gaps
        ),
        _single((plans.first_ps + pause_ps)[first], np.where(is_single, num_kept, plans.num_gaps)[first]),
        _single(plans.last_ps[last], num_kept[last]),
        _single(np.array(late_gaps_ps, dtype=np.int64), np.ones(len(late_gaps_ps), dtype=np.int64)),
    ]
    found = joined(rows)
    return found.where((found.multiplicity != 0) & (found.num_steps != 0))


def _single(gaps_ps: Ints, multiplicity: Ints) -> GapSpans:
    return GapSpans(gaps_ps, np.zeros_like(gaps_ps), np.ones_like(gaps_ps), multiplicity)


def summarize_spans(parts: Sequence[GapSpans]) -> Summary:
    """{mean, p50, p90, p95, p99, max, n} of the gaps of all parts, in seconds: percentiles as numpy's of them all, bit
    for bit, and an exact mean. O(spans), and O(n log n) for the gaps about as long as one that is asked for; where
    those are millions, O(spans) of such gaps for each halving of the range that is left.
    """
    num_gaps = sum(part.num_gaps for part in parts)
    if num_gaps == 0:
        return named_figures(None, [], 0)
    ranks = Ranks.of((*PERCENTILES, 100), num_gaps)
    found_s = _ranked_ps(parts, np.concatenate([ranks.below, ranks.above])) / PS_PER_S
    ranked = ranks.between(*np.split(found_s, 2)).tolist()
    return named_figures(sum(part.total_ps for part in parts) / (num_gaps * PS_PER_S), ranked, num_gaps)


def _ranked_ps(parts: Sequence[GapSpans], ranks: Ints) -> Ints:
    """The gaps of these ranks from below, from 0.

    A rank's gap is no shorter than it would be if all gaps of a span were as short as its first, and no longer than if
    they were as long as its last. Only the spans that reach in between matter.
    """
    bins = [(_bins(part.first_ps), _bins(part.last_ps)) for part in parts]
    num_each = [part.num_each for part in parts]
    least = _bin_of_rank([first for first, _ in bins], parts, ranks)
    most = _bin_of_rank([last for _, last in bins], parts, ranks)
    found = np.zeros_like(ranks)
    for low, high in set(zip(least.tolist(), most.tolist(), strict=True)):
        near, num_below = [], 0
        for part, (first, last), num in zip(parts, bins, num_each, strict=True):
            near.append(part.where(np.flatnonzero((first <= high) & (last >= low))))
            num_below += int(num[last < low].sum())
        of_these = (least == low) & (most == high)
        found[of_these] = _selected_ps(near, ranks[of_these] - num_below)
    return found


def _selected_ps(parts: Sequence[GapSpans], ranks: Ints) -> Ints:
    """As `_ranked_ps`, of all gaps of these parts."""
    if _num_expanded(parts) > _MOST_EXPANDED:
        return np.array([_halved_ps(parts, rank) for rank in ranks.tolist()])
    gaps_ps, multiplicity = (np.concatenate(columns) for columns in zip(*(p.expanded() for p in parts), strict=True))
    order = np.argsort(gaps_ps)
    num_up_to = np.cumsum(multiplicity[order], dtype=np.int64)
    return np.asarray(gaps_ps[order[np.searchsorted(num_up_to, ranks, side="right")]])


def _halved_ps(parts: Sequence[GapSpans], rank: int) -> int:
    """The gap of one rank, where too many are there to expand: the range is halved until few or equal ones are left."""
    found = [part for part in parts if len(part.first_ps)]
    low, high = min(int(p.first_ps.min()) for p in found), max(int(p.last_ps.max()) for p in found)
    while low < high:
        middle = (low + high) // 2
        if sum(part.num_up_to(middle) for part in found) > rank:
            high = middle
            found = [part.where(part.first_ps <= high) for part in found]
        else:
            low = middle + 1
            rank -= sum(part.where(part.last_ps < low).num_gaps for part in found)
            found = [part.where(part.last_ps >= low) for part in found]
        if _num_expanded(found) <= _MOST_EXPANDED:
            return int(_selected_ps(found, np.array([rank]))[0])
    return low


def _num_expanded(parts: Sequence[GapSpans]) -> int:
    return sum(int(part.num_steps.sum(dtype=np.int64)) for part in parts)


def _bins(gaps_ps: Ints) -> Ints:
    """Bins of about equal relative width, in order: a float's exponent and the first bits of its fraction."""
    return np.asarray(gaps_ps.astype(np.float32).view(np.int32) >> _NUM_BITS_CUT)


def _bin_of_rank(bins: Sequence[Ints], parts: Sequence[GapSpans], ranks: Ints) -> Ints:
    """In which bin each rank falls, were the gaps of each span in the bin that is given for it."""
    least, most = min(int(each.min()) for each in bins if len(each)), max(int(each.max()) for each in bins if len(each))
    num_gaps = np.zeros(most - least + 1)
    for each, part in zip(bins, parts, strict=True):
        num_gaps += np.bincount(each - least, part.num_each, len(num_gaps))
    return np.asarray(np.searchsorted(np.cumsum(num_gaps), ranks, side="right") + least)
