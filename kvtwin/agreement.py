"""How far two sets of figures agree: errors of paired latencies, distance of distributions, agreement of rankings.

Every error is (simulated − measured) / measured, so a negative one means the simulator was too optimistic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError

Floats = NDArray[np.float64]


def relative_error(simulated: float | None, measured: float | None) -> float | None:
    """(simulated − measured) / measured; 0 when both are 0, None when it is not defined."""
    if simulated is None or measured is None:
        return None
    if measured == 0:
        return 0.0 if simulated == 0 else None
    return (simulated - measured) / measured


def relative_spread(repeats: Sequence[float]) -> float | None:
    """(max − min) / median of repeats of one figure; None for a single repeat, 0 when all are 0."""
    if len(repeats) < 2:
        return None
    middle = median(repeats)
    if middle == 0:
        return 0.0 if max(repeats) == min(repeats) else None
    return (max(repeats) - min(repeats)) / middle


def is_within_spread(error_ratio: float | None, spread_ratio: float | None) -> bool:
    """Whether the simulator's error is no larger than what two runs of the engine differ by."""
    return error_ratio is not None and spread_ratio is not None and abs(error_ratio) <= spread_ratio


def paired_errors(simulated: Floats, measured: Floats) -> dict[str, float | int | None]:
    """Errors of paired latencies, [num_requests] each; a pair with an undefined side is left out.

    mape_ratio and bias_ratio are the means of the absolute and of the signed error of each request; p50_error_ratio
    compares the two medians, which no single request need have.
    """
    defined = ~np.isnan(simulated) & ~np.isnan(measured) & (measured > 0)
    simulated, measured = simulated[defined], measured[defined]
    if not simulated.size:
        return {"mape_ratio": None, "bias_ratio": None, "p50_error_ratio": None, "n": 0}
    errors = (simulated - measured) / measured
    return {
        "mape_ratio": float(np.abs(errors).mean()),
        "bias_ratio": float(errors.mean()),
        "p50_error_ratio": relative_error(float(np.median(simulated)), float(np.median(measured))),
        "n": int(simulated.size),
    }


def ks_distance(first: Floats, second: Floats) -> float | None:
    """The largest vertical gap between the two empirical CDFs (Kolmogorov–Smirnov), in [0, 1]."""
    first, second = (np.sort(values[~np.isnan(values)]) for values in (first, second))
    if not first.size or not second.size:
        return None
    every = np.concatenate([first, second])
    shares = [np.searchsorted(values, every, side="right") / values.size for values in (first, second)]
    return float(np.abs(shares[0] - shares[1]).max())


def ranking_agreement(
    pairs: Sequence[tuple[str, float, float]], best: Callable[[Iterable[float]], float] = min
) -> dict[str, Any]:
    """Whether simulator and engine rank policies alike: (policy, simulated, measured) for one metric.

    kendall_tau is tau-b (ties count for neither side), None when either side ties throughout. `best` is `min` for a
    latency and `max` for a rate. Raises InputError for fewer than two policies.
    """
    if len(pairs) < 2:
        raise InputError(f"a ranking needs at least two policies, got {len(pairs)}")
    best_simulated = _holders(pairs, best, 1)
    best_measured = _holders(pairs, best, 2)
    return {
        "num_policies": len(pairs),
        "kendall_tau": _kendall_tau(pairs),
        "best_simulated": best_simulated,
        "best_measured": best_measured,
        "best_agrees": bool(set(best_simulated) & set(best_measured)),
    }


def _holders(
    pairs: Sequence[tuple[str, float, float]], best: Callable[[Iterable[float]], float], side: int
) -> list[str]:
    values = [float(pair[side]) for pair in pairs]
    return [pair[0] for pair, value in zip(pairs, values, strict=True) if value == best(values)]


def _kendall_tau(pairs: Sequence[tuple[str, float, float]]) -> float | None:
    simulated = np.array([np.sign(a[1] - b[1]) for a, b in combinations(pairs, 2)])
    measured = np.array([np.sign(a[2] - b[2]) for a, b in combinations(pairs, 2)])
    untied = np.count_nonzero(simulated) * np.count_nonzero(measured)
    return float(np.dot(simulated, measured) / np.sqrt(untied)) if untied else None
