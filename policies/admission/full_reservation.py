"""Room for all that a request may ever need."""

from __future__ import annotations

from core.interfaces import Admission, AdmissionPolicy, PolicyEnv, SchedulerView
from core.request import Request


class FullReservation(AdmissionPolicy):
    """Admits where prompts and allowed outputs of all that run would fit together (Text Generation Inference,
    TensorRT-LLM's GUARANTEED_NO_EVICT): nothing is ever preempted. O(1).

    Counts the blocks that each may come to hold, as if nobody shared any. One that is allowed more than the whole pool
    (`trace.max_new_tokens`) gets the pool for itself.
    """

    rejects = False

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._reserved: dict[Request, int] = {}
        self._num_reserved = 0

    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        if view.num_blocks is None:
            return Admission.ADMIT
        needed = min(view.peak_blocks(request), view.num_blocks)
        return Admission.ADMIT if self._num_reserved + needed <= view.num_blocks else Admission.WAIT

    def on_admit(self, request: Request, view: SchedulerView) -> None:
        self._reserved[request] = view.peak_blocks(request)
        self._num_reserved += self._reserved[request]

    def on_stop(self, request: Request, view: SchedulerView) -> None:
        self._num_reserved -= self._reserved.pop(request)
