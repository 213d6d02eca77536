"""A distribution kept as its values at a few probabilities: what a generator fits and draws from."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from core.errors import InputError


@dataclass(frozen=True)
class Quantiles:
    """`values[i]` is not exceeded with probability `probabilities[i]` (from 0 to 1); linear in between."""

    probabilities: tuple[float, ...]
    values: tuple[int, ...]

    def __post_init__(self) -> None:
        probabilities, values = list(self.probabilities), list(self.values)
        rising = probabilities == sorted(set(probabilities)) and values == sorted(values)
        if not rising or probabilities[0] != 0 or probabilities[-1] != 1:
            raise InputError(f"quantiles {self}: expected probabilities from 0 to 1 and values, both rising")

    @classmethod
    def fit(cls, observed: npt.NDArray[Any], probabilities: tuple[float, ...]) -> Quantiles:
        """The whole-number quantiles of observed values (linear between order statistics)."""
        return cls(probabilities, tuple(int(value) for value in np.rint(np.quantile(observed, probabilities))))

    def at(self, probability: float) -> int:
        """The value at a probability from 0 to 1, rounded to a whole number."""
        upper = min(bisect_right(self.probabilities, probability), len(self.values) - 1)
        low, high = self.probabilities[upper - 1], self.probabilities[upper]
        start, end = self.values[upper - 1], self.values[upper]
        return round(start + (end - start) * ((probability - low) / (high - low)))

    def draws(self, num_draws: int, rng: random.Random) -> list[int]:
        """Values in random order, one from each of `num_draws` equally likely strata: few draws already fit well.

        Only additions, products and `rng.random` are used, so that a seed gives the same values on every machine.
        """
        strata = list(range(num_draws))
        rng.shuffle(strata)
        return [self.at((stratum + rng.random()) / num_draws) for stratum in strata]
