"""The replicas of a run, as routing policies are given them."""

from __future__ import annotations

from collections.abc import Sequence

from core.request import Request
from core.routing import Replicas
from core.scheduler import Scheduler
from sim.fleet_replica import FleetReplica
from sim.fleet_views import Outstanding, Overview


class LiveReplicas(Replicas):
    """Never machine code: mypyc makes no lists. What it answers is."""

    def __init__(
        self, replicas: Sequence[FleetReplica], schedulers: Sequence[Scheduler], outstanding: Outstanding
    ) -> None:
        overview = Overview(replicas, schedulers, outstanding)
        super().__init__(overview.views)
        self._outstanding = outstanding
        self._overview = overview

    def num_outstanding(self) -> list[int]:
        self._outstanding.settle_all()
        return self._outstanding.num

    def num_cached_tokens(self, request: Request) -> list[int]:
        return self._overview.num_cached_tokens(request)

    def with_fewest_referenced_blocks(self) -> list[int]:
        return self._overview.with_fewest_referenced_blocks()
