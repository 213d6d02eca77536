"""The least urgent, for memory and for slots."""

from __future__ import annotations

from typing import ClassVar

from core.interfaces import Preemption, Running, Shortage
from core.request import Request
from policies.preemption.lowest_priority import LowestPriority


class StrictPriority(LowestPriority):
    """Also takes a running request's slot for a more urgent one that waits for it; equals never do that to each other.

    Goes with `queue=priority`: under fcfs a victim would be first in line again, so nobody gives up a slot there.
    """

    takes_slots: ClassVar[bool] = True

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        preemption = super().select(running, shortage, for_request)
        if shortage.slots and preemption is not None and preemption.request.priority <= for_request.priority:
            return None
        return preemption
