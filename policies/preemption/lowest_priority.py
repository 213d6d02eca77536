"""The least urgent."""

from __future__ import annotations

from typing import Any, Literal

from core.interfaces import PolicyEnv
from core.request import Request
from policies.preemption.ranked import Ranked


class LowestPriority(Ranked):
    """The least urgent: largest (priority, arrival). O(running).

    Of requests with equal priority and arrival, `ties="last"` takes the last in queue order, so that the others get
    done. `ties="first"` takes the first in running order, as vLLM 0.33 does: equals may then preempt one another for
    ever.
    """

    goes_by = frozenset({"priority"})

    def __init__(
        self,
        env: PolicyEnv,
        mode: str = "recompute",
        ties: Literal["last", "first"] = "last",
        max_preemptions: int | None = None,
    ) -> None:
        super().__init__(env, mode, max_preemptions)
        self._first_of_equals = {"last": False, "first": True}[ties]

    def rank(self, request: Request) -> Any:
        last = -request.rank if self._first_of_equals else request.request_id
        return (request.priority, request.arrival_ps, last)
