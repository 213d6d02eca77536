"""When requests (or sessions, where a recipe has them) start. The first starts at 0."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate
from math import exp, pi, sqrt
from typing import NamedTuple

import numpy as np

from core.errors import InputError
from traces.generators.blocks import Block, key, number, whole
from traces.generators.distributions import (
    Distribution,
    FloatArray,
    distribution,
    normal_correlation,
    rank_of,
)
from traces.generators.streams import Streams
from traces.ragged import IntArray

MAX_CYCLES = 1_000_000
NUM_BISECTIONS = 60


class Starts(NamedTuple):
    """When each start happens. In a closed loop it waits for an earlier one to end."""

    start_s: FloatArray  # [num_starts]
    after: IntArray | None = None  # the start whose end it waits for, -1: none
    think_s: FloatArray | None = None  # from that end to this start
    client: IntArray | None = None


class Arrivals(Block, ABC):
    """A process of starts."""

    @abstractmethod
    def starts(self, durations_s: FloatArray, streams: Streams) -> Starts:
        """As many starts as there are durations; a duration is how long that start keeps its client busy."""


class Renewal(Arrivals):
    """Starts whose gaps do not depend on when they are."""

    def starts(self, durations_s: FloatArray, streams: Streams) -> Starts:
        return Starts(_since_first(self.gaps_s(len(durations_s) - 1, streams.of("arrivals"))))

    @abstractmethod
    def gaps_s(self, num_gaps: int, rng: np.random.Generator) -> FloatArray:
        """Seconds from one start to the next, `[num_gaps]`."""


@dataclass(frozen=True, kw_only=True)
class Poisson(Renewal):
    """Independent users: exponential gaps, coefficient of variation 1."""

    rate_rps: float = key(number(above=0))

    def gaps_s(self, num_gaps: int, rng: np.random.Generator) -> FloatArray:
        return rng.standard_exponential(num_gaps) / self.rate_rps


@dataclass(frozen=True, kw_only=True)
class Gamma(Renewal):
    """Gamma gaps with a coefficient of variation: burstier than Poisson above 1, more regular below."""

    rate_rps: float = key(number(above=0))
    cv: float = key(number(least=0.01, most=100))

    def gaps_s(self, num_gaps: int, rng: np.random.Generator) -> FloatArray:
        shape = self.cv**-2
        return rng.standard_gamma(shape, num_gaps) / (shape * self.rate_rps)


@dataclass(frozen=True, kw_only=True)
class EmpiricalGaps(Renewal):
    """Gaps from a table of quantiles, in an order with a memory.

    The gaps are reordered by the ranks of a normal series, the sum of a slow autoregressive part and noise: gaps `k`
    starts apart have about the rank correlation `rank_autocorrelation * exp(-k / memory_starts)`. So quiet and busy
    stretches follow each other, and the gaps' distribution stays that of the table.
    """

    gap_s: Distribution = key(distribution)
    rank_autocorrelation: float = key(number(least=0, most=0.99), 0.0)
    memory_starts: float = key(number(above=0), 1.0)

    def gaps_s(self, num_gaps: int, rng: np.random.Generator) -> FloatArray:
        gaps_s = self.gap_s.draws(num_gaps, rng)
        if self.rank_autocorrelation == 0 or num_gaps < 2:
            return gaps_s
        slow_variance = normal_correlation(self.rank_autocorrelation)
        decay = exp(-1 / self.memory_starts)
        shocks = rng.standard_normal(num_gaps)
        shocks[1:] *= sqrt(1 - decay * decay)
        slow = np.array(list(accumulate(shocks.tolist(), lambda level, shock: decay * level + shock)))
        series = sqrt(slow_variance) * slow + sqrt(1 - slow_variance) * rng.standard_normal(num_gaps)
        return np.sort(gaps_s)[rank_of(series)]


@dataclass(frozen=True, kw_only=True)
class OnOff(Arrivals):
    """Bursts and idle times by turns, each with Poisson arrivals at its own rate (a Markov-modulated Poisson process,
    where the durations are exponential)."""

    on_rate_rps: float = key(number(above=0))
    off_rate_rps: float = key(number(least=0), 0.0)
    on_s: Distribution = key(distribution)
    off_s: Distribution = key(distribution)

    def starts(self, durations_s: FloatArray, streams: Streams) -> Starts:
        expected = _since_first(streams.of("arrivals").standard_exponential(len(durations_s) - 1))
        phase_ends_s, expected_by_end = self._phases(float(expected[-1]), streams)
        return Starts(np.interp(expected, expected_by_end, phase_ends_s))

    def _phases(self, num_expected: float, streams: Streams) -> tuple[FloatArray, FloatArray]:
        """Ends of the phases, and how many arrivals are expected by each: at least `num_expected` by the last."""
        num_cycles = 64
        while num_cycles <= MAX_CYCLES:
            on_s = self.on_s.draws(num_cycles, streams.of("arrivals.on_s"))
            off_s = self.off_s.draws(num_cycles, streams.of("arrivals.off_s"))
            lasts_s = np.column_stack((on_s, off_s)).ravel()
            rates_rps = np.tile((self.on_rate_rps, self.off_rate_rps), num_cycles)
            ends_s, expected_by_end = _since_first(lasts_s), _since_first(lasts_s * rates_rps)
            if expected_by_end[-1] >= num_expected:
                return ends_s, expected_by_end
            num_cycles *= 2
        raise InputError(
            f"arrivals: {MAX_CYCLES} bursts are not enough for all requests; expected longer or denser ones"
        )


@dataclass(frozen=True, kw_only=True)
class Diurnal(Arrivals):
    """A Poisson process whose rate swings about its mean: `rate_rps * (1 + amplitude * sin(2 pi t / period_s))`."""

    rate_rps: float = key(number(above=0))
    period_s: float = key(number(above=0), 86_400.0)
    amplitude: float = key(number(least=0, most=1))

    def starts(self, durations_s: FloatArray, streams: Streams) -> Starts:
        expected = _since_first(streams.of("arrivals").standard_exponential(len(durations_s) - 1)) / self.rate_rps
        swing_s = self.amplitude * self.period_s / (2 * pi)
        low, high = np.maximum(0, expected - 2 * swing_s), expected
        for _ in range(NUM_BISECTIONS):
            middle = (low + high) / 2
            is_early = middle + swing_s * (1 - np.cos(2 * pi * middle / self.period_s)) < expected
            low, high = np.where(is_early, middle, low), np.where(is_early, high, middle)
        return Starts(high)


@dataclass(frozen=True, kw_only=True)
class AllAtOnce(Arrivals):
    """Everything starts at 0: an offline batch."""

    def starts(self, durations_s: FloatArray, streams: Streams) -> Starts:
        return Starts(np.zeros(len(durations_s)))


@dataclass(frozen=True, kw_only=True)
class ClosedLoop(Arrivals):
    """`concurrency` clients, each of which starts anew a think time after the end of its last start.

    The times noted are those of the recipe's nominal service. A replay waits for the real end instead: every start has
    the last request of its client's start before as parent.
    """

    concurrency: int = key(whole(least=1, most=1_000_000))
    think_time_s: Distribution = key(distribution)

    def starts(self, durations_s: FloatArray, streams: Streams) -> Starts:
        num_starts = len(durations_s)
        think_s = self.think_time_s.draws(num_starts, streams.of("arrivals"))
        start_s, after, client = np.zeros(num_starts), np.full(num_starts, -1), np.zeros(num_starts, dtype=np.int64)
        free = [(0.0, number, -1) for number in range(self.concurrency)]  # (since, client, its last start)
        for start in range(num_starts):
            since_s, number_, last = heapq.heappop(free)
            start_s[start] = since_s + (think_s[start] if last >= 0 else 0)
            after[start], client[start] = last, number_
            heapq.heappush(free, (start_s[start] + durations_s[start], number_, start))
        return Starts(start_s, after, think_s, client)


ARRIVALS: dict[str, type[Arrivals]] = {
    "poisson": Poisson,
    "gamma": Gamma,
    "empirical": EmpiricalGaps,
    "on_off": OnOff,
    "diurnal": Diurnal,
    "all_at_once": AllAtOnce,
    "closed_loop": ClosedLoop,
}


def _since_first(gaps: FloatArray) -> FloatArray:
    """Running sums from 0 on, one more than there are gaps."""
    return np.concatenate(([0.0], np.cumsum(gaps)))
