"""Shortest job first, with linear aging."""

from __future__ import annotations

from typing import Any

from core.errors import InputError
from core.interfaces import PolicyEnv, QueuePolicy
from core.request import Request
from core.units import PS_PER_S
from policies.prediction import LengthPredictor


class SJF(QueuePolicy):
    """Fewest output tokens first: the true number, or with `noise` a blurred one (`policies.prediction`). O(log n).

    Every second of waiting makes a request `aging_tokens_per_s` tokens shorter. Waiting ages all alike, so the order of
    two requests never changes; and a request of n tokens is passed by nobody who comes n / aging_tokens_per_s seconds
    after it, or later. Without aging long requests may starve.
    """

    clairvoyant = True

    def __init__(self, env: PolicyEnv, noise: float = 0.0, aging_tokens_per_s: float = 0.0) -> None:
        super().__init__(env)
        if not isinstance(aging_tokens_per_s, int | float) or not 0 <= aging_tokens_per_s < float("inf"):
            raise InputError(f"queue.aging_tokens_per_s={aging_tokens_per_s}: expected a number from 0 on")
        self._predictor = LengthPredictor(env.seed, noise, "queue.noise")
        self._aging_tokens_per_ps = aging_tokens_per_s / PS_PER_S

    def size_tokens(self, request: Request) -> int:
        return self._predictor.num_output_tokens(request)

    def key(self, request: Request) -> Any:
        aged = self.size_tokens(request) + self._aging_tokens_per_ps * request.arrival_ps
        return (aged, request.queue_position)
