"""Correlations of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def rank_correlation(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> float:
    """Spearman's correlation; equal values share the mean of their ranks. 0 where one of the two is constant."""
    if len(left) < 2:
        return 0.0
    left_ranks, right_ranks = mean_ranks(left), mean_ranks(right)
    if np.ptp(left_ranks) == 0 or np.ptp(right_ranks) == 0:
        return 0.0
    return float(np.corrcoef(left_ranks, right_ranks)[0, 1])


def mean_ranks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The place of each value in their order, from 1 on; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: npt.NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return ranks
