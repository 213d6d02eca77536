"""Most room for KV."""

from __future__ import annotations

from collections.abc import Sequence

from core.request import Request
from core.routing import ReplicaView, RoutingPolicy


class LeastKVUse(RoutingPolicy):
    """The replica whose running requests hold the fewest blocks; of equals, the one with the fewest requests.

    Requests that wait hold none yet, so a burst is told apart by its number. Every replica catches up with its steps
    for each request: the slowest of these policies. O(replicas). Source: least KV use of the Gateway API inference
    extension's scorers (2025), here with the exact use of this moment instead of a scraped metric's.
    """

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        loads = [(replica.num_referenced_blocks, replica.num_outstanding) for replica in replicas]
        return loads.index(min(loads))
