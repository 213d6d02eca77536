"""The more urgent first."""

from __future__ import annotations

from typing import Any

from core.interfaces import QueuePolicy
from core.request import Request


class Priority(QueuePolicy):
    """Least (priority, arrival, id) first: a lower number is more urgent (vLLM 0.33)."""

    goes_by = frozenset({"priority"})

    def key(self, request: Request) -> Any:
        return (request.priority, request.arrival_ps, request.request_id)
