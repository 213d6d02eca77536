"""What else a request may have: a tenant, a priority, a user who gives up, a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.generators.blocks import Block, Place, key, number, whole
from traces.generators.distributions import Distribution, distribution, zipf_draws
from traces.generators.streams import Streams
from traces.ragged import IntArray

PS_PER_US = 10**6
LONGEST_S = 9_000_000  # a picosecond clock in 64 bits ends after 106 days
NONE = -1


@dataclass(frozen=True, kw_only=True)
class Tenants(Block):
    """`count` tenants; the k-th largest has requests (or sessions) as k ** -zipf."""

    count: int = key(whole(least=1, most=10_000_000))
    zipf: float = key(number(least=0, most=10), 1.0)

    def column(self, group: IntArray, streams: Streams) -> IntArray:
        """The tenant of each request; those of one group have the same."""
        tenants = zipf_draws(self.count, self.zipf, int(group.max()) + 1, streams.of("tenants"))
        return tenants[group]


@dataclass(frozen=True, kw_only=True)
class Cancellations(Block):
    """With `probability` the user gives up, some time after the request was sent (if it has not ended by then)."""

    probability: float = key(number(least=0, most=1))
    after_s: Distribution = key(distribution)

    def column(self, num_requests: int, streams: Streams) -> IntArray:
        """Picoseconds from arrival; -1: never."""
        return _sometimes_ps("cancellations", self.probability, self.after_s, num_requests, streams)


@dataclass(frozen=True, kw_only=True)
class Deadlines(Block):
    """With `probability` the whole answer is due some time after the request was sent."""

    probability: float = key(number(least=0, most=1), 1.0)
    after_s: Distribution = key(distribution)

    def column(self, num_requests: int, streams: Streams) -> IntArray:
        """Picoseconds from arrival; -1: none."""
        return _sometimes_ps("deadlines", self.probability, self.after_s, num_requests, streams)


def priorities(value: Any, place: Place) -> dict[int, float]:
    """Reads the probabilities of priorities (lower is more urgent): `{0: 0.1, 5: 0.9}`."""
    if not isinstance(value, Mapping) or not value:
        raise place.refusal(value, "a mapping from priority to probability, such as {0: 0.1, 5: 0.9}")
    read = {_priority(name, place): number(least=0, most=1)(share, place.of(name)) for name, share in value.items()}
    if abs(sum(read.values()) - 1) > 1e-6:
        raise place.refusal(value, f"probabilities that sum to 1, not {sum(read.values()):g}")
    return read


def priority_column(probabilities: Mapping[int, float], num_requests: int, streams: Streams) -> IntArray:
    """The priority of each request."""
    cumulated = np.cumsum(list(probabilities.values()))
    drawn = np.searchsorted(cumulated / cumulated[-1], streams.of("priorities").random(num_requests), side="right")
    return np.array(list(probabilities), dtype=np.int64)[drawn]


def to_ps(seconds: Any) -> IntArray:
    """Times rounded to a microsecond, in picoseconds; what is longer than LONGEST_S is taken for that."""
    ps: IntArray = np.rint(np.minimum(seconds, LONGEST_S) * 1e6).astype(np.int64) * PS_PER_US
    return ps


def _priority(name: Any, place: Place) -> int:
    try:
        return int(str(name))  # as text in JSON, whose keys are texts
    except ValueError:
        raise place.of(name).refusal(name, "a priority, which is a whole number") from None


def _sometimes_ps(
    part: str, probability: float, after_s: Distribution, num_requests: int, streams: Streams
) -> IntArray:
    happens = streams.of(f"{part}.whether").random(num_requests) < probability
    return np.where(happens, to_ps(after_s.draws(num_requests, streams.of(f"{part}.after"))), NONE)
