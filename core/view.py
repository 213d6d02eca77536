"""The scheduler as policies see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.request import Request
    from core.running import RunningRequests
    from core.scheduler import Scheduler


class View:
    """Implements `core.interfaces.SchedulerView`: read-only."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.num_full_blocks = 0

    @property
    def step(self) -> int:
        return self._scheduler.step

    @property
    def running(self) -> RunningRequests:
        return self._scheduler.running

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def num_free_blocks(self) -> int:
        return self._scheduler.tables.pool.num_available

    @property
    def num_blocks(self) -> int | None:
        return self._scheduler.tables.pool.num_blocks

    @property
    def max_batch_tokens(self) -> int:
        return self._scheduler.config.max_batch_tokens

    @property
    def chunked_prefill(self) -> bool:
        return self._scheduler.config.chunked_prefill

    @property
    def long_prefill_threshold_tokens(self) -> int:
        return self._scheduler.config.long_prefill_threshold_tokens

    @property
    def prefix_caching(self) -> bool:
        return self._scheduler.tables.prefix_caching

    @property
    def num_prefill_tokens(self) -> int:
        return self._scheduler.num_prefill_tokens

    def num_output_tokens(self, tenant: int) -> int:
        return self._scheduler.running.batch.num_output_tokens(tenant)

    def num_cached_tokens(self, request: Request) -> int:
        tables = self._scheduler.tables
        return tables.find_prefix(request.live[0]).num_tokens if tables.prefix_caching else 0
