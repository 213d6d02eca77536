"""First come, first served."""

from __future__ import annotations

from typing import Any

from mypy_extensions import mypyc_attr

from core.interfaces import QueuePolicy
from core.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class FCFS(QueuePolicy):
    """First come, first served; preempted requests go to the front."""

    def key(self, request: Request) -> Any:
        return request.queue_position
