"""Join the shortest queue."""

from __future__ import annotations

from core.least import first_least
from core.request import Request
from core.routing import Replicas, RoutingPolicy


class LeastOutstanding(RoutingPolicy):
    """The replica with the fewest requests that are not done; the first of equals. O(replicas).

    Source: join the shortest queue (Winston 1977); LOR in Vidur (MLSys'24); least_conn of nginx and Envoy.
    """

    looks_back = False

    def route(self, request: Request, replicas: Replicas) -> int:
        return first_least(replicas.num_outstanding())
