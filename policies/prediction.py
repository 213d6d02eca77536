"""A stand-in for a predictor of output lengths: the true length, blurred."""

from __future__ import annotations

import random

from core.errors import InputError
from core.request import Request


class LengthPredictor:
    """Predicts the true number of output tokens times exp(noise x a standard normal), at least 1.

    Each request has one prediction, which depends on the seed and its id alone. `noise` 0 is the oracle; S3 and
    "learning to rank" (arXiv 2408.15792) are real predictors whose error it stands for. `setting` names it in errors.
    """

    def __init__(self, seed: int, noise: float, setting: str) -> None:
        if not isinstance(noise, int | float) or not 0 <= noise < float("inf"):
            raise InputError(f"{setting}={noise}: expected the standard deviation of the logarithm, a number from 0 on")
        self._seed = seed
        self._noise = noise
        self._blurred: dict[int, int] = {}  # request id -> prediction

    def num_output_tokens(self, request: Request) -> int:
        """Of each of its samples, from the first token on."""
        if not self._noise:
            return request.num_output_tokens
        known = self._blurred.get(request.request_id)
        if known is None:
            draw = random.Random(f"{self._seed}/{request.request_id}")
            known = max(1, round(request.num_output_tokens * draw.lognormvariate(0.0, self._noise)))
            self._blurred[request.request_id] = known
        return known

    def num_remaining_tokens(self, request: Request) -> int:
        """What is left of the prediction, at least 1: who outlives it counts as about to end."""
        return max(1, self.num_output_tokens(request) - request.live[0].num_outputs)
