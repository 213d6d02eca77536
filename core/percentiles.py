"""Percentiles of a weighted multiset, equal to numpy's on the expanded array, without expanding it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 95, 99)

Summary = dict[str, float | int | None]


def weighted_percentiles(
    values: NDArray[np.float64], multiplicity: NDArray[np.int64], percentiles: Sequence[float]
) -> NDArray[np.float64]:
    """The linear percentiles of `np.repeat(values, multiplicity)`, bit for bit, in O(m log m).

    `values` and `multiplicity` are [num_values]; at least one multiplicity must be positive.
    Raises ValueError when the multiset is empty.
    """
    occurs = multiplicity > 0
    values, multiplicity = values[occurs], multiplicity[occurs]
    if not values.size:
        raise ValueError("percentiles of an empty multiset are not defined")
    order = np.argsort(values, kind="stable")
    ranked, num_up_to = values[order], np.cumsum(multiplicity[order])
    num_values = int(num_up_to[-1])
    position = np.true_divide(np.asarray(percentiles, dtype=np.float64), 100) * (num_values - 1)
    below = np.floor(position).astype(np.int64)
    low = ranked[np.searchsorted(num_up_to, below, side="right")]
    high = ranked[np.searchsorted(num_up_to, np.minimum(below + 1, num_values - 1), side="right")]
    # numpy interpolates from the nearer neighbour; doing the same keeps the last bit equal.
    fraction, distance = position - below, high - low
    return np.asarray(np.where(fraction < 0.5, low + distance * fraction, high - distance * (1 - fraction)))


def summarize_weighted(values: NDArray[np.float64], multiplicity: NDArray[np.int64]) -> Summary:
    """{mean, p50, p90, p95, p99, max, n} of a weighted multiset; every figure but n is None when it is empty."""
    num_values = int(multiplicity.sum())
    names = [f"p{percentile}" for percentile in PERCENTILES]
    if num_values == 0:
        return {"mean": None, **dict.fromkeys(names), "max": None, "n": 0}
    ranked = weighted_percentiles(values, multiplicity, (*PERCENTILES, 100)).tolist()
    mean = float(np.dot(values, multiplicity) / num_values)
    return {"mean": mean, **dict(zip([*names, "max"], ranked, strict=True)), "n": num_values}


def summarize(values: NDArray[np.float64]) -> Summary:
    """{mean, p50, p90, p95, p99, max, n} of the values that are defined (not nan)."""
    defined = values[~np.isnan(values)]
    return summarize_weighted(defined, np.ones(defined.size, dtype=np.int64))
