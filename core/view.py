"""The scheduler as policies see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.servable import peak_blocks

if TYPE_CHECKING:
    from core.request import Request
    from core.running import RunningRequests
    from core.scheduler import Scheduler


class View:
    """Implements `core.scheduler_view.SchedulerView`: read-only."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.num_full_blocks = 0
        config, tables = scheduler.config, scheduler.tables
        self.num_blocks = tables.pool.num_blocks
        self.num_kv_groups = tables.num_groups
        self.max_batch_tokens = config.max_batch_tokens
        self.chunked_prefill = config.chunked_prefill
        self.long_prefill_threshold_tokens = config.long_prefill_threshold_tokens
        self.prefix_caching = tables.prefix_caching

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
    def num_running_sequences(self) -> int:
        return self._scheduler.running.num_sequences

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def num_free_blocks(self) -> int:
        return self._scheduler.tables.pool.num_available

    @property
    def num_missing_blocks(self) -> int:
        tables, prefills = self._scheduler.tables, self._scheduler.running.prefills
        return sum(tables.num_needed_for_all(sequence, len(sequence.tables[0])) for sequence in prefills.values())

    def peak_blocks(self, request: Request) -> int:
        return peak_blocks(request, self._scheduler.tables, request.max_new_tokens)

    @property
    def num_prefill_tokens(self) -> int:
        return self._scheduler.num_prefill_tokens

    def num_output_tokens(self, tenant: int) -> int:
        return self._scheduler.running.batch.num_output_tokens(tenant)

    def num_cached_tokens(self, request: Request) -> int:
        tables = self._scheduler.tables
        return tables.find_prefix(request.live[0]).num_tokens if tables.prefix_caching else 0
