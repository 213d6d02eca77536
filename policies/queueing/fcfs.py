"""First come, first served."""

from __future__ import annotations

from typing import Any

from core.interfaces import QueuePolicy
from core.request import Request


class FCFS(QueuePolicy):
    """First come, first served; preempted requests go to the front."""

    def key(self, request: Request) -> Any:
        return request.queue_position
