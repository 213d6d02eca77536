"""Anybody."""

from __future__ import annotations

import random
from typing import Any

from core.interfaces import PolicyEnv
from core.request import Request
from policies.preemption.ranked import Ranked


class Random(Ranked):
    """A victim drawn from the run's seed, each with equal chance. O(running)."""

    def __init__(self, env: PolicyEnv, mode: str = "recompute", max_preemptions: int | None = None) -> None:
        super().__init__(env, mode, max_preemptions)
        self._draw = random.Random(f"{env.seed}/preemption")

    def rank(self, request: Request) -> Any:
        return self._draw.random()
