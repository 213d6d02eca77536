"""Arrivals of a trace as a recipe: the gaps' distribution, their memory, and the clock that they were noted by."""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.fitting.ranks import mean_ranks
from traces.fitting.tables import TAIL_PROBABILITIES, plain, table
from traces.generators.distributions import FloatArray
from traces.schema import Trace

COARSE_RATIO = 0.5  # fewer distinct arrival times than this share of the requests: the clock is coarse
REGULAR_RATIO = 0.9  # of the steps between them that must be multiples of one quantum
SEED = 0  # of where within a quantum requests are taken to have arrived
NEAR_LAGS = range(1, 31)
MAX_LAG = 2000
LEAST_CORRELATION = 0.003  # of near gaps; below it there is no memory worth a key
MOST_CORRELATION = 0.9


def fit_arrivals(trace: Trace) -> dict[str, Any]:
    """The recipe's keys `arrivals` and, where the trace's clock is coarse, `time_quantum_s`.

    With a coarse clock requests are first spread evenly at random within their quantum. Then the gaps' quantiles are
    taken, and the rank correlation of gaps 1 to 30 apart, with the distance at which it has fallen to a third.
    """
    arrival_s = trace.arrival_ps / 1e12
    if arrival_s[0] == arrival_s[-1]:
        return {"arrivals": {"kind": "all_at_once"}}
    quantum_s = clock_quantum_s(arrival_s)
    if quantum_s:
        rng = np.random.Generator(np.random.PCG64(SEED))
        arrival_s = np.sort(arrival_s + quantum_s * rng.random(len(arrival_s)))
    gaps_s = np.diff(arrival_s)
    arrivals: dict[str, Any] = {"kind": "empirical", "gap_s": _gap_table(gaps_s), **_memory(gaps_s)}
    return {"arrivals": arrivals, **({"time_quantum_s": quantum_s} if quantum_s else {})}


def clock_quantum_s(arrival_s: FloatArray) -> float:
    """The step of a clock so coarse that many requests share a time; 0 where it is fine, or has no one step."""
    distinct_s = np.unique(arrival_s)
    if len(distinct_s) > COARSE_RATIO * len(arrival_s) or len(distinct_s) < 3:
        return 0.0
    steps_s = np.diff(distinct_s)
    quantum_s = float(f"{np.median(steps_s):.2g}")
    off = np.abs(steps_s / quantum_s - np.rint(steps_s / quantum_s))
    return quantum_s if np.mean(off < 0.05) > REGULAR_RATIO else 0.0


def _gap_table(gaps_s: FloatArray) -> dict[str, Any]:
    """Quantiles of the gaps, scaled so that their mean, and with it the rate, is exact."""
    gap_s = table(gaps_s, TAIL_PROBABILITIES)
    if gap_s["kind"] == "fixed":
        return gap_s
    mean_s = float(np.trapezoid(gap_s["values"], gap_s["probabilities"]))
    return gap_s | {"values": [plain(value * float(gaps_s.mean()) / mean_s) for value in gap_s["values"]]}


def _memory(gaps_s: FloatArray) -> dict[str, float]:
    longest = min(MAX_LAG, len(gaps_s) // 20)
    if longest < len(NEAR_LAGS):
        return {}
    ranks = mean_ranks(gaps_s)
    near = float(np.mean([_correlation(ranks, lag) for lag in NEAR_LAGS]))
    if near < LEAST_CORRELATION:
        return {}
    lag = len(NEAR_LAGS)
    while lag < longest and _around(ranks, lag) > near / 3:
        lag = min(2 * lag, longest)
    return {"rank_autocorrelation": plain(round(min(near, MOST_CORRELATION), 4)), "memory_starts": lag}


def _around(ranks: FloatArray, lag: int) -> float:
    step = max(1, lag // 20)
    return float(np.mean([_correlation(ranks, near) for near in range(lag - 5 * step, lag + 5 * step, step)]))


def _correlation(ranks: FloatArray, lag: int) -> float:
    if np.ptp(ranks[:-lag]) == 0 or np.ptp(ranks[lag:]) == 0:
        return 0.0
    return float(np.corrcoef(ranks[:-lag], ranks[lag:])[0, 1])
