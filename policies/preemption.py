"""Preemption policies: who gives up its memory when a running request cannot grow."""

from __future__ import annotations

from core.interfaces import PolicyEnv, Preemption, PreemptionPolicy, PreemptMode, Running, Shortage
from core.request import Request


class LastArrived(PreemptionPolicy):
    """The request admitted last (vLLM under fcfs), which may be the one that needs room. O(1)."""

    def __init__(self, env: PolicyEnv, mode: str = "recompute") -> None:
        super().__init__(env)
        self._mode = PreemptMode(mode)

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        return Preemption(next(reversed(running)), self._mode)


class LowestPriority(PreemptionPolicy):
    """The least urgent: largest (priority, arrival), the first of equals in running order (vLLM under priority). O(running)."""

    def __init__(self, env: PolicyEnv, mode: str = "recompute") -> None:
        super().__init__(env)
        self._mode = PreemptMode(mode)

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        return Preemption(max(running, key=lambda request: (request.priority, request.arrival_ps)), self._mode)
