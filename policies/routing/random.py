"""Any replica."""

from __future__ import annotations

from core.request import Request
from core.routing import StaticRouting
from policies.routing.spreading import spread


class Random(StaticRouting):
    """A replica drawn from the run's seed and the request's number, each with equal chance.

    The bound that power of two choices is measured against: of n balls in n bins the fullest has about
    log n / log log n (Mitzenmacher 2001).
    """

    placed_by: str | None = "request_id"

    def place(self, request: Request, num_replicas: int) -> int:
        return spread(self.env.seed, "routing", request.request_id) % num_replicas
