"""All steps of a run in at most six rows, which give the same time means, peaks and least counts."""

from __future__ import annotations

from typing import Any

import numpy as np

from core.metrics import StepColumns
from core.packing import exact_dot
from core.stretches import Stretches
from core.units import PS_PER_S

_COUNTS = ("num_referenced_blocks", "num_cached_blocks", "num_orphan_blocks")


class FewSteps:
    """Takes stretch after stretch, and keeps sums in whole numbers: the means are exact however the run is cut up."""

    def __init__(self) -> None:
        self._early = _Phase()
        self._late = _Phase()  # from the first eviction on

    def add(self, stretches: Stretches) -> None:
        """The stretches that come next in time."""
        num_early = 0 if self._late.has_begun else int((np.cumsum(stretches.num_evictions) == 0).sum())
        early, late = stretches.part(slice(num_early)), stretches.part(slice(num_early, None))
        if len(early):
            self._early.add(early)
        if len(late):
            if self._early.has_begun and not self._late.has_begun:
                self._early.idle_until(int(late.start_ps[0]))
            self._late.add(late)

    def columns(self) -> StepColumns:
        """Before the first eviction, and since: a row with all the time and the means, and two without time for the
        extremes.
        """
        rows = [*self._early.rows(), *self._late.rows()]
        columns: list[Any] = [*np.array(rows, dtype=np.float64).reshape(-1, 6).T]
        start_s, duration_s, referenced, cached, orphans, evictions = columns
        return StepColumns(start_s, duration_s, referenced, cached, evictions, orphans, referenced, cached, orphans)


class _Phase:
    """Stretches without a gap: what they end with holds until the next one starts."""

    def __init__(self) -> None:
        self.has_begun = False
        self._start_ps = self._end_ps = self._num_evictions = 0
        self._block_ps = [0, 0, 0]  # of each of _COUNTS, blocks times picoseconds
        self._after = [0, 0, 0]
        self._least: list[int] = []
        self._most: list[int] = []

    def add(self, rows: Stretches) -> None:
        """At least one stretch."""
        if self.has_begun:
            self.idle_until(int(rows.start_ps[0]))
        else:
            self._start_ps, self.has_begun = int(rows.start_ps[0]), True
        busy_ps, idle_ps = rows.end_ps - rows.start_ps, rows.start_ps[1:] - rows.end_ps[:-1]
        pairs = [(getattr(rows, name), getattr(rows, f"{name}_after")) for name in _COUNTS]
        for number, (during, after) in enumerate(pairs):
            self._block_ps[number] += exact_dot(during, busy_ps) + exact_dot(after[:-1], idle_ps)
        self._after = [int(after[-1]) for _, after in pairs]
        least = [min(int(during.min()), int(after.min())) for during, after in pairs]
        most = [max(int(during.max()), int(after.max())) for during, after in pairs]
        self._least = list(map(min, self._least or least, least))
        self._most = list(map(max, self._most or most, most))
        self._num_evictions += int(rows.num_evictions.sum())
        self._end_ps = int(rows.end_ps[-1])

    def idle_until(self, now_ps: int) -> None:
        """Nothing runs from the end of the newest stretch until then."""
        for number, num_blocks in enumerate(self._after):
            self._block_ps[number] += num_blocks * (now_ps - self._end_ps)
        self._end_ps = now_ps

    def rows(self) -> list[list[float]]:
        """(start, duration, referenced, cached, orphans, evictions) of those that stand for it."""
        if not self.has_begun:
            return []
        start_s, span_ps, end_s = self._start_ps / PS_PER_S, self._end_ps - self._start_ps, self._end_ps / PS_PER_S
        means = (
            [block_ps / span_ps for block_ps in self._block_ps] if span_ps else [float(each) for each in self._after]
        )
        return [
            [start_s, span_ps / PS_PER_S, *means, self._num_evictions],
            [end_s, 0.0, *self._least, 0],
            [end_s, 0.0, *self._most, 0],
        ]
