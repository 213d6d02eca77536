"""The Virtual Token Counter: fair shares among tenants (Sheng et al., OSDI'24)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from core.errors import InputError
from core.interfaces import PolicyEnv, QueuePolicy, SchedulerView
from core.request import Request


class VTC(QueuePolicy):
    """The tenant that was served least goes first; its requests in order of arrival.

    Service counts `input_weight` a prompt token, charged when a request is first admitted, and `output_weight` an
    output token. A tenant that joins the queue is lifted to the least counter of those that wait, or to that of the
    tenant who left the queue last where nobody waits: idling earns no credit. Between tenants that always have requests
    waiting, service never differs by more than 2 max(w_in x longest prompt, w_out x tokens that fit into memory), if
    nothing is preempted. What is computed again after a preemption is not charged again. O(tenants) an admission.
    """

    window = 0
    goes_by = frozenset({"tenant"})

    def __init__(self, env: PolicyEnv, input_weight: float = 1, output_weight: float = 2) -> None:
        super().__init__(env)
        for name, weight in (("input_weight", input_weight), ("output_weight", output_weight)):
            if not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
                raise InputError(f"queue.{name}={weight}: expected a number from 0 on")
        self._input_weight = input_weight
        self._output_weight = output_weight
        self._charged: dict[int, float] = {}  # by tenant: prompts, and lifts
        self._waiting: dict[int, list[tuple[int, int, Request]]] = {}  # a heap a tenant: (position, id, request)
        self._left_last: int | None = None  # the tenant that left the queue last

    def key(self, request: Request) -> Any:
        return request.queue_position

    def counter(self, tenant: int, view: SchedulerView) -> float:
        """The service that the tenant has had, and what it was lifted by."""
        return self._charged.get(tenant, 0) + self._output_weight * view.num_output_tokens(tenant)

    def on_join(self, request: Request, view: SchedulerView) -> None:
        tenant = request.tenant
        if tenant not in self._waiting:
            self._lift(tenant, view)
            self._waiting[tenant] = []
        heapq.heappush(self._waiting[tenant], (request.queue_position, request.request_id, request))

    def _lift(self, tenant: int, view: SchedulerView) -> None:
        if self._waiting:
            floor = min(self.counter(other, view) for other in self._waiting)
        elif self._left_last is not None:
            floor = self.counter(self._left_last, view)
        else:
            return
        self._charge(tenant, max(0, floor - self.counter(tenant, view)))

    def _charge(self, tenant: int, service: float) -> None:
        self._charged[tenant] = self._charged.get(tenant, 0) + service

    def on_leave(self, request: Request, view: SchedulerView) -> None:
        queue = self._waiting[request.tenant]
        entry = (request.queue_position, request.request_id, request)
        if queue[0] == entry:
            heapq.heappop(queue)
        else:
            queue.remove(entry)
            heapq.heapify(queue)
        if not queue:
            del self._waiting[request.tenant]
            self._left_last = request.tenant

    def on_admit(self, request: Request, view: SchedulerView) -> None:
        if request.num_cached_tokens < 0:  # for the first time
            self._charge(request.tenant, self._input_weight * request.num_prompt_tokens)

    def rerank(self, heads: Sequence[Request], view: SchedulerView) -> Iterable[Request]:
        return self._least_served(view)

    def _least_served(self, view: SchedulerView) -> Iterator[Request]:
        """Each is asked for when the one before has been admitted, and charged."""
        while self._waiting:
            tenant = min(self._waiting, key=lambda tenant: (self.counter(tenant, view), self._waiting[tenant][0][:2]))
            yield self._waiting[tenant][0][2]
