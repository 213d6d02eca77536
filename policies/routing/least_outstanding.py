"""Join the shortest queue."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from core.request import Request
from core.routing import ReplicaView, RoutingPolicy

_num_outstanding = attrgetter("num_outstanding")


class LeastOutstanding(RoutingPolicy):
    """The replica with the fewest requests that are not done; the first of equals. O(replicas).

    Source: join the shortest queue (Winston 1977); LOR in Vidur (MLSys'24); least_conn of nginx and Envoy.
    """

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        loads = list(map(_num_outstanding, replicas))
        return loads.index(min(loads))
