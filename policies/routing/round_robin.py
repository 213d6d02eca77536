"""Round robin: everybody in turn."""

from __future__ import annotations

from core.request import Request
from core.routing import StaticRouting


class RoundRobin(StaticRouting):
    """Request n of the trace goes to replica n modulo their number, as cards are dealt.

    Where requests wait for answers (sessions, closed loops) they may arrive in another order than the trace's: this
    goes by the trace. Source: the default of most load balancers; Vidur's round_robin (MLSys'24) by arrival.
    """

    placed_by: str | None = "request_id"

    def place(self, request: Request, num_replicas: int) -> int:
        return request.request_id % num_replicas
