"""How soon content is asked for again, by category: an exponential fit, made anew from time to time."""

from __future__ import annotations

from dataclasses import dataclass
from math import expm1, log


@dataclass(slots=True)
class _Observed:
    """Of one category; halved at each refit, so that what is old fades."""

    num_uses: float = 0.0
    num_reuses: float = 0.0
    reuse_time_ps: float = 0.0  # sum


class ReuseTimes:
    """A use is followed by another one with some probability, after a time that is exponentially distributed.

    Both are estimated per category (share of uses that were reuses; mean time), with one reuse after `prior_ps` as a
    prior, which also stands for categories not seen yet.
    """

    def __init__(self, prior_ps: int) -> None:
        self._prior_ps = prior_ps
        self._observed: dict[int, _Observed] = {}
        self._fitted: dict[int, tuple[float, float]] = {}  # category -> share, mean time

    def add_use(self, category: int) -> None:
        self._of(category).num_uses += 1

    def add_reuse(self, category: int, time_ps: int) -> None:
        """A use so long after the one before."""
        observed = self._of(category)
        observed.num_uses += 1
        observed.num_reuses += 1
        observed.reuse_time_ps += time_ps

    def _of(self, category: int) -> _Observed:
        return self._observed.setdefault(category, _Observed())

    def refit(self) -> None:
        """O(categories)."""
        for category, seen in self._observed.items():
            num_reuses = seen.num_reuses + 1
            mean_ps = (seen.reuse_time_ps + self._prior_ps) / num_reuses
            self._fitted[category] = num_reuses / (seen.num_uses + 1), mean_ps
            seen.num_uses /= 2
            seen.num_reuses /= 2
            seen.reuse_time_ps /= 2

    def log_probability(self, category: int, idle_ps: int, life_ps: int) -> float:
        """Logarithm of the probability that content idle for `idle_ps` is used within the next `life_ps`: the mass of
        the category's distribution between the two ages. The logarithm orders what would underflow.
        """
        share, mean_ps = self._fitted.get(category, (1.0, self._prior_ps))
        return log(share) - idle_ps / mean_ps + log(-expm1(-life_ps / mean_ps))
