"""What a router sees of the replicas of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.least import first_least
from core.request import Request
from core.scheduler import Scheduler
from sim.fleet_replica import FleetReplica


class Outstanding:
    """The requests that were routed to each replica and are not done, counted by the router.

    Before their number is told, `settle` counts the ends at a replica before now, and `settle_all` those at each.
    """

    def __init__(
        self,
        num_replicas: int,
        block_size: int,
        settle: Callable[[int], None] = lambda number: None,
        settle_all: Callable[[], None] = lambda: None,
    ) -> None:
        self._block_size = block_size
        self.settle = settle
        self.settle_all = settle_all
        self.num = [0] * num_replicas
        self.num_short = [0] * num_replicas  # those whose prompts do not fill a block

    def add(self, request: Request, replica: int) -> None:
        self.num[replica] += 1
        if request.num_prompt_tokens < self._block_size:
            self.num_short[replica] += 1

    def remove(self, request: Request, replica: int) -> None:
        self.num[replica] -= 1
        if request.num_prompt_tokens < self._block_size:
            self.num_short[replica] -= 1


class LiveView:
    """Implements `core.routing.ReplicaView`."""

    def __init__(self, number: int, replica: FleetReplica, scheduler: Scheduler, outstanding: Outstanding) -> None:
        self._number = number
        self._replica = replica
        self._tables = scheduler.tables
        self._outstanding = outstanding
        self.num_blocks = scheduler.tables.pool.num_blocks

    @property
    def num_outstanding(self) -> int:
        self._outstanding.settle(self._number)
        return self._outstanding.num[self._number]

    @property
    def num_waiting(self) -> int:
        return self._replica.num_queued

    @property
    def num_running(self) -> int:
        return self._replica.num_running

    @property
    def num_referenced_blocks(self) -> int:
        self._replica.catch_up()
        return self._tables.pool.num_referenced

    def has_first_token(self, request: Request) -> bool:
        self._replica.make_up()
        return request.first_token_ps >= 0

    def num_cached_tokens(self, request: Request) -> int:
        replica = self._replica
        if not self._tables.prefix_caching or not request.keys.num_shared:
            return 0  # nobody has had its blocks
        if not self._outstanding.num_short[self._number] and replica.has_nothing_of(request):
            return 0
        replica.catch_up()
        return self._tables.num_cached_tokens(request)


class Overview:
    """What all of them are asked at once. It takes no more of them along than it must."""

    def __init__(
        self, replicas: Sequence[FleetReplica], schedulers: Sequence[Scheduler], outstanding: Outstanding
    ) -> None:
        self.views = [
            LiveView(number, replica, scheduler, outstanding)
            for number, (replica, scheduler) in enumerate(zip(replicas, schedulers, strict=True))
        ]
        self._replicas = list(replicas)
        self._prefix_caching = schedulers[0].tables.prefix_caching

    def num_cached_tokens(self, request: Request) -> list[int]:
        if not self._prefix_caching or not request.keys.num_shared:
            return [0] * len(self.views)
        return [view.num_cached_tokens(request) for view in self.views]

    def with_fewest_referenced_blocks(self) -> list[int]:
        now_ps = self._replicas[0].routers_ps
        at_least = [replica.num_referenced_at_least(now_ps) for replica in self._replicas]
        fewest = self.views[first_least(at_least)].num_referenced_blocks
        found: list[int] = []
        for number, least in enumerate(at_least):
            if least <= fewest:
                num = self.views[number].num_referenced_blocks
                if num < fewest:
                    fewest = num
                    found.clear()
                if num == fewest:
                    found.append(number)
        return found
