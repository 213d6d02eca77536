"""Means and their confidence intervals from a few independent values (Student's t)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import cos, pi, sin, sqrt, tan

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of `num` values, and half the width of its 95 % interval; None where there is one value only."""

    mean: float
    half_width: float | None
    num: int

    @property
    def excludes_zero(self) -> bool:
        return self.half_width is not None and abs(self.mean) > self.half_width


def interval_of(values: Sequence[float]) -> Interval:
    """The t-interval of the mean of independent, roughly normal values; `values` holds at least one.

    With few values it is wide, as it has to be: times 12.7 for two, 4.3 for three, 2.8 for five, 2.3 for ten.
    """
    num = len(values)
    if min(values) == max(values):  # what rounding leaves of a sum must not look like a spread
        return Interval(values[0], 0.0 if num > 1 else None, num)
    mean = sum(values) / num
    variance = sum((value - mean) ** 2 for value in values) / (num - 1)
    return Interval(mean, t_quantile(num - 1) * sqrt(variance / num), num)


@cache
def t_quantile(num_degrees: int, confidence: float = CONFIDENCE) -> float:
    """How many standard errors a two-sided interval reaches, for `num_degrees` >= 1 degrees of freedom.

    Whole degrees have a finite sum for P(|T| <= t) (Abramowitz and Stegun 26.7.3 and 26.7.4), solved here by bisection
    over atan(t / sqrt(degrees)): exact to about ten digits, O(degrees).
    """
    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _probability_within(middle, num_degrees) < confidence else (low, middle)
    return sqrt(num_degrees) * tan(low)


def _probability_within(angle: float, num_degrees: int) -> float:
    """P(|T| <= t) for t = sqrt(degrees) tan(angle)."""
    is_odd = num_degrees % 2
    term, total = (cos(angle) if is_odd else 1.0), 0.0
    for power in range(2 + is_odd, num_degrees + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power - 1) / power
    return 2 / pi * (angle + sin(angle) * total) if is_odd else sin(angle) * total
