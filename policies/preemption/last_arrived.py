"""Last in, first out."""

from __future__ import annotations

from typing import Any

from core.interfaces import Preemption, Running, Shortage
from core.request import Request
from policies.preemption.ranked import Ranked


class LastArrived(Ranked):
    """The request admitted last (vLLM under fcfs), which may be the one that needs room. O(1) without a bound."""

    def rank(self, request: Request) -> Any:
        return request.rank

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        if self._max_preemptions is None:
            return Preemption(next(reversed(running)), self._mode)
        return super().select(running, shortage, for_request)
