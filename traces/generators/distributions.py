"""Distributions of lengths, times and counts. A bare number in a recipe is a fixed one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import exp, inf, pi, sin, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.generators.blocks import Block, Place, Reader, key, list_of, number, one_of
from traces.ragged import IntArray

FloatArray = npt.NDArray[np.float64]
MAX_TOKENS = 2**31 - 1


class Distribution(Block, ABC):
    """A distribution of numbers from 0 on."""

    @abstractmethod
    def draws(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        """`[num_draws]` values."""


@dataclass(frozen=True, kw_only=True)
class Bounded(Distribution):
    """A distribution whose values beyond `min` and `max` are set to these."""

    min: float = key(number(least=0), 0.0)
    max: float = key(number(least=0), inf)

    def check(self, place: Place) -> None:
        if self.min > self.max:
            raise place.of("min").refusal(self.min, f"no more than max={self.max:g}")

    def draws(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        return np.clip(self.unbounded(num_draws, rng), self.min, self.max)

    @abstractmethod
    def unbounded(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        """`[num_draws]` values, some of which may lie beyond the bounds."""


@dataclass(frozen=True, kw_only=True)
class Fixed(Distribution):
    """Always the same value."""

    value: float = key(number(least=0))

    def draws(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        return np.full(num_draws, self.value)


@dataclass(frozen=True, kw_only=True)
class Uniform(Distribution):
    """Equally likely from `min` to `max`."""

    min: float = key(number(least=0))
    max: float = key(number(least=0))

    def check(self, place: Place) -> None:
        if self.min > self.max:
            raise place.of("min").refusal(self.min, f"no more than max={self.max:g}")

    def draws(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        return self.min + (self.max - self.min) * rng.random(num_draws)


@dataclass(frozen=True, kw_only=True)
class Exponential(Bounded):
    """Exponential with a mean (before the bounds)."""

    mean: float = key(number(above=0))

    def unbounded(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        return rng.standard_exponential(num_draws) * self.mean


@dataclass(frozen=True, kw_only=True)
class Geometric(Bounded):
    """Counts from 1 on with a mean (before the bounds): after each one the next comes with the same probability."""

    mean: float = key(number(least=1))

    def unbounded(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        return rng.geometric(1 / self.mean, num_draws).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class Lognormal(Bounded):
    """Lognormal: `sigma` is the standard deviation of the logarithm; `median` or `mean` are before the bounds."""

    sigma: float = key(number(least=0, most=10))
    median: float | None = key(number(above=0), None)
    mean: float | None = key(number(above=0), None)

    def check(self, place: Place) -> None:
        super().check(place)
        if (self.median is None) == (self.mean is None):
            raise place.refusal({"median": self.median, "mean": self.mean}, "either a median or a mean")

    def unbounded(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        median = self.median if self.median is not None else (self.mean or 0) * exp(-(self.sigma**2) / 2)
        return median * np.exp(self.sigma * rng.standard_normal(num_draws))


@dataclass(frozen=True, kw_only=True)
class Empirical(Distribution):
    """Quantiles of observed values, linear in between; `kvtwin trace fit` makes such tables from any trace.

    One value comes from each of `num_draws` equally likely strata, in random order, so that few draws already have the
    table's percentiles.
    """

    probabilities: tuple[float, ...] = key(list_of(number(least=0, most=1)))
    values: tuple[float, ...] = key(list_of(number(least=0)))

    def check(self, place: Place) -> None:
        probabilities = list(self.probabilities)
        if probabilities != sorted(set(probabilities)) or probabilities[0] != 0 or probabilities[-1] != 1:
            raise place.of("probabilities").refusal(probabilities, "probabilities that rise from 0 to 1")
        if list(self.values) != sorted(self.values) or len(self.values) != len(probabilities):
            raise place.of("values").refusal(list(self.values), f"{len(probabilities)} values that do not fall")

    def draws(self, num_draws: int, rng: np.random.Generator) -> FloatArray:
        strata = (rng.permutation(num_draws) + rng.random(num_draws)) / num_draws
        return np.interp(strata, self.probabilities, self.values)


DISTRIBUTIONS: dict[str, type[Distribution]] = {
    "fixed": Fixed,
    "uniform": Uniform,
    "exponential": Exponential,
    "geometric": Geometric,
    "lognormal": Lognormal,
    "empirical": Empirical,
}
_read_distribution: Reader = one_of(DISTRIBUTIONS)


def distribution(value: Any, place: Place) -> Distribution:
    """Reads a distribution, or a number, which stands for a fixed one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    made: Distribution = _read_distribution({"kind": "fixed", "value": value} if is_number else value, place)
    return made


def counts(of: Distribution, num_draws: int, rng: np.random.Generator) -> IntArray:
    """Draws as whole numbers of at least 1: tokens, turns."""
    return np.rint(np.clip(of.draws(num_draws, rng), 1, MAX_TOKENS)).astype(np.int64)


def zipf_draws(num_items: int, exponent: float, num_draws: int, rng: np.random.Generator) -> IntArray:
    """Items 0 … num_items - 1, item i as likely as (i + 1) ** -exponent, `[num_draws]`."""
    weights = np.arange(1, num_items + 1, dtype=np.float64) ** -exponent
    cumulated = np.cumsum(weights)
    drawn: IntArray = np.searchsorted(cumulated, rng.random(num_draws) * cumulated[-1], side="right").astype(np.int64)
    return np.minimum(drawn, num_items - 1)


def rank_of(values: npt.NDArray[Any]) -> IntArray:
    """The place of each value in their order, `[num_values]`; equal ones in the order they stand in."""
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks


def normal_correlation(rank_correlation: float) -> float:
    """The correlation of two normal variables that have this rank correlation (Pearson 1907): 2 sin(pi r / 6)."""
    return 2 * sin(pi * rank_correlation / 6)


def correlated(values: IntArray, others: IntArray, rank_correlation: float, rng: np.random.Generator) -> IntArray:
    """`others` in a new order, in which they have about this Spearman correlation with `values` (-1 to 1).

    A Gaussian copula laid over values that are drawn already (Iman and Conover 1982), so neither distribution changes.
    """
    if rank_correlation == 0 or len(values) < 2:
        return others
    rho = normal_correlation(rank_correlation)
    scores = np.sort(rng.standard_normal(len(values)))[rank_of(values)]
    other_scores = rho * scores + sqrt(max(0.0, 1 - rho * rho)) * rng.standard_normal(len(values))
    return np.sort(others)[rank_of(other_scores)]
