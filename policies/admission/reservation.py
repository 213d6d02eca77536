"""Room for what is known now: the first chunk, a watermark, the whole prompt."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from core.errors import InputError
from core.interfaces import Admission, AdmissionPolicy, PolicyEnv, SchedulerView
from core.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class Reservation(AdmissionPolicy):
    """Admits where the first chunk fits, the watermark stays free and, with `full_prompt`, the whole known text would
    fit.

    The watermark is a share of the pool that only admissions must leave free. With `watermark_when_idle` (vLLM V0) they
    must even where nothing runs, and whoever never can is rejected; else it holds only while anything runs (vLLM 0.33).
    `num_null_blocks` are blocks that an engine counts in that share but cannot use (vLLM v1: 1). Greedy is
    `full_prompt=False, watermark=0`. Source: vLLM 0.33 by its logs, V0 as read.
    """

    def __init__(
        self,
        env: PolicyEnv,
        full_prompt: bool = True,
        watermark: float = 0.0,
        num_null_blocks: int = 0,
        watermark_when_idle: bool = False,
    ) -> None:
        super().__init__(env)
        if not isinstance(watermark, int | float) or not 0 <= watermark < 1:
            raise InputError(f"admission.watermark={watermark}: expected a share of the pool, at least 0 and below 1")
        self._full_prompt = full_prompt
        self._watermark_when_idle = self.rejects = watermark_when_idle
        self._watermark_blocks = 0 if env.num_blocks is None else int(watermark * (env.num_blocks + num_null_blocks))

    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        watermark_blocks = self._watermark_blocks
        if watermark_blocks and not (self._watermark_when_idle or view.num_running):
            watermark_blocks = 0
        needed = max(num_new_blocks, view.num_full_blocks) if self._full_prompt else num_new_blocks
        if self._watermark_when_idle and view.num_blocks is not None and needed + watermark_blocks > view.num_blocks:
            return Admission.REJECT
        return Admission.ADMIT if needed + watermark_blocks <= view.num_free_blocks else Admission.WAIT
