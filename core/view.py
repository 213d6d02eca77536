"""The scheduler as policies see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.scheduler import Scheduler


class View:
    """Implements `core.interfaces.SchedulerView`: read-only, O(1) each."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.num_full_blocks = 0

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
