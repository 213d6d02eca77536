"""Percentiles as numpy's linear ones, bit for bit, and the figures of a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)

Summary = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where percentiles lie among so many sorted values: between the neighbours `below` and `above`, from 0 on."""

    below: NDArray[np.int64]
    above: NDArray[np.int64]
    fraction: NDArray[np.float64]

    @classmethod
    def of(cls, percentiles: Sequence[float], num_values: int) -> Ranks:
        position = np.true_divide(np.asarray(percentiles, dtype=np.float64), 100) * (num_values - 1)
        below = np.floor(position).astype(np.int64)
        return cls(below, np.minimum(below + 1, num_values - 1), position - below)

    def between(self, low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
        """numpy interpolates from the nearer neighbour; doing the same keeps the last bit equal."""
        distance = high - low
        from_below, from_above = low + distance * self.fraction, high - distance * (1 - self.fraction)
        return np.asarray(np.where(self.fraction < 0.5, from_below, from_above))


def summarize(values: NDArray[np.float64]) -> Summary:
    """{mean, p50, p90, p95, p99, max, n} of the values that are defined (not nan)."""
    defined = values[~np.isnan(values)]
    if not defined.size:
        return named_figures(None, [], 0)
    mean = float(defined.sum() / defined.size)  # a product with ones would depend on the number of threads
    defined.sort()
    ranks = Ranks.of((*PERCENTILES, 100), defined.size)
    return named_figures(mean, ranks.between(defined[ranks.below], defined[ranks.above]).tolist(), defined.size)


def named_figures(mean: float | None, ranked: Sequence[float], num_values: int) -> Summary:
    """As a summary names them: `ranked` are PERCENTILES and the greatest; nothing where there is no value."""
    names = [*(f"p{percentile}" for percentile in PERCENTILES), "max"]
    return {"mean": mean, **dict(zip_longest(names, ranked)), "n": num_values}
