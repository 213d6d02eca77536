"""How far two sets of figures agree: errors of paired latencies, distance of distributions, agreement of rankings.

Every error is (simulated − measured) / measured, so a negative one means the simulator was too optimistic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

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


class Ranked(NamedTuple):
    """One configuration's figure of one metric; `spread_ratio` is what repeats on the engine differ by, if known."""

    name: str
    simulated: float
    measured: float
    spread_ratio: float | None = None


def ranking_agreement(
    members: Sequence[Ranked], best: Callable[[Iterable[float]], float] = min
) -> dict[str, float | int | bool | list[str] | None]:
    """Whether simulator and engine rank configurations alike by one metric.

    kendall_tau is tau-b (ties count for neither side), None when either side ties throughout. A pair is told apart if
    its measured figures differ by more than the engine's own spread of either; num_told_apart is None where no spread
    is known. `best` is `min` for a latency and `max` for a rate. O(members²). Raises InputError for fewer than two.
    """
    if len(members) < 2:
        raise InputError(f"a ranking needs at least two configurations, got {len(members)}")
    best_simulated = _holders([(each.name, each.simulated) for each in members], best)
    best_measured = _holders([(each.name, each.measured) for each in members], best)
    pairs = list(combinations(members, 2))
    apart = [pair for pair in pairs if _are_told_apart(*pair)]
    has_spreads = any(None not in (one.spread_ratio, other.spread_ratio) for one, other in pairs)
    return {
        "num_configurations": len(members),
        "kendall_tau": _kendall_tau(members),
        "best_simulated": best_simulated,
        "best_measured": best_measured,
        "best_agrees": bool(set(best_simulated) & set(best_measured)),
        "num_pairs": len(pairs),
        "num_told_apart": len(apart) if has_spreads else None,
        "num_told_apart_alike": sum(_are_ordered_alike(*pair) for pair in apart) if has_spreads else None,
    }


def _are_told_apart(one: Ranked, other: Ranked) -> bool:
    if one.spread_ratio is None or other.spread_ratio is None:
        return False
    spread = max(one.spread_ratio * one.measured, other.spread_ratio * other.measured)
    return abs(one.measured - other.measured) > spread


def _are_ordered_alike(one: Ranked, other: Ranked) -> bool:
    return (one.simulated - other.simulated) * (one.measured - other.measured) > 0


def _holders(figures: Sequence[tuple[str, float]], best: Callable[[Iterable[float]], float]) -> list[str]:
    best_figure = best(figure for _, figure in figures)
    return [name for name, figure in figures if figure == best_figure]


def _kendall_tau(members: Sequence[Ranked]) -> float | None:
    simulated = np.array([np.sign(a.simulated - b.simulated) for a, b in combinations(members, 2)])
    measured = np.array([np.sign(a.measured - b.measured) for a, b in combinations(members, 2)])
    untied = np.count_nonzero(simulated) * np.count_nonzero(measured)
    return float(np.dot(simulated, measured) / np.sqrt(untied)) if untied else None
