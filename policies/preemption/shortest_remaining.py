"""Those that are nearly done stay."""

from __future__ import annotations

from typing import Any

from core.interfaces import PolicyEnv
from core.request import Request
from policies.prediction import LengthPredictor
from policies.preemption.ranked import Ranked


class ShortestRemaining(Ranked):
    """Most output tokens left goes, so that those with the shortest remaining time stay. O(running).

    What is left is the true number, or with `noise` that of a blurred prediction (`policies.prediction`).
    """

    clairvoyant = True

    def __init__(
        self, env: PolicyEnv, mode: str = "recompute", noise: float = 0.0, max_preemptions: int | None = None
    ) -> None:
        super().__init__(env, mode, max_preemptions)
        self._predictor = LengthPredictor(env.seed, noise, "preemption.noise")

    def rank(self, request: Request) -> Any:
        return self._predictor.num_remaining_tokens(request)
