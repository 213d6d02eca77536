"""Shortest remaining processing time."""

from __future__ import annotations

from core.request import Request
from policies.queueing.sjf import SJF


class SRPT(SJF):
    """`SJF` by the output tokens that are left: a preempted request keeps credit for those it has.

    It orders the queue; running requests are not preempted for shorter ones. `preemption=shortest_remaining` goes with
    it where memory runs out.
    """

    def size_tokens(self, request: Request) -> int:
        return self._predictor.num_remaining_tokens(request)
