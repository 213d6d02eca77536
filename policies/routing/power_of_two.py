"""The power of two choices."""

from __future__ import annotations

import random

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.request import Request
from core.routing import Replicas, RoutingPolicy


class PowerOfTwo(RoutingPolicy):
    """Of `num_choices` replicas drawn from the run's seed, the one with the fewest requests that are not done.

    Two choices instead of one bring the fullest of n bins from about log n / log log n down to log log n / log 2
    (Mitzenmacher, IEEE TPDS 2001). Whoever is drawn first wins a tie. O(num_choices).
    """

    looks_back = False

    def __init__(self, env: PolicyEnv, num_choices: int = 2) -> None:
        super().__init__(env)
        if not isinstance(num_choices, int) or num_choices < 1:
            raise InputError(f"routing.num_choices={num_choices}: expected a whole number of at least 1")
        self._num_choices = num_choices
        self._draw = random.Random(f"{env.seed}/routing")

    def route(self, request: Request, replicas: Replicas) -> int:
        drawn = self._draw.sample(range(len(replicas)), min(self._num_choices, len(replicas)))
        return min(drawn, key=lambda number: replicas[number].num_outstanding)
