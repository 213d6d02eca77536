"""Preemption policies: who gives up its memory when a running request cannot grow."""

from __future__ import annotations

from typing import ClassVar, Literal

from core.errors import InputError
from core.interfaces import PolicyEnv, Preemption, PreemptionPolicy, PreemptMode, Running, Shortage
from core.request import Request


def _mode(name: str) -> PreemptMode:
    try:
        return PreemptMode(name)
    except ValueError:
        modes = " or ".join(mode.value for mode in PreemptMode)
        raise InputError(f"preemption.mode={name}: expected {modes}") from None


class LastArrived(PreemptionPolicy):
    """The request admitted last (vLLM under fcfs), which may be the one that needs room. O(1)."""

    def __init__(self, env: PolicyEnv, mode: str = "recompute") -> None:
        super().__init__(env)
        self._mode = _mode(mode)

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        return Preemption(next(reversed(running)), self._mode)


class LowestPriority(PreemptionPolicy):
    """The least urgent: largest (priority, arrival). O(running).

    Of requests with equal priority and arrival, `ties="last"` takes the last in queue order, so that the others get
    done. `ties="first"` takes the first in running order, as vLLM 0.33 does: equals may then preempt one another for
    ever.
    """

    goes_by = frozenset({"priority"})

    def __init__(self, env: PolicyEnv, mode: str = "recompute", ties: Literal["last", "first"] = "last") -> None:
        super().__init__(env)
        self._mode = _mode(mode)
        self._tie_break = {"last": 1, "first": 0}[ties]

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        return Preemption(max(running, key=self._least_urgent), self._mode)

    def _least_urgent(self, request: Request) -> tuple[int, int, int]:
        return request.priority, request.arrival_ps, self._tie_break * request.request_id


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
