"""Only who can be served in time, and only while nobody else is slowed down too much."""

from __future__ import annotations

from core.errors import InputError
from core.interfaces import Admission, AdmissionPolicy, Change, PolicyEnv, SchedulerView
from core.request import Request
from core.units import to_ps


class SLOAware(AdmissionPolicy):
    """Admits where a simple model predicts both objectives to be met; turns away who has waited too long already.

    A step takes `step_s + decode_sequence_s x sequences`. With one more request it may take `tpot_s` at most, else it
    waits; nobody waits for an idle engine. A prompt of n tokens that are not cached takes n x `prefill_token_s` more;
    where that can no longer end within `ttft_s` of the arrival the request is rejected, unless `rejects` is off: then
    it runs, late. A request that has its first token is never rejected. null: no such objective. O(1) and a look-up of
    the prompt.
    """

    def __init__(
        self,
        env: PolicyEnv,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        step_s: float = 0.01,
        decode_sequence_s: float = 0.0001,
        prefill_token_s: float = 0.0001,
        rejects: bool = True,
    ) -> None:
        super().__init__(env)
        for name, limit in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
            if limit is not None and (not isinstance(limit, int | float) or not 0 < limit < float("inf")):
                raise InputError(f"admission.{name}={limit}: expected a number above 0, or null")
        for name, cost in (
            ("step_s", step_s),
            ("decode_sequence_s", decode_sequence_s),
            ("prefill_token_s", prefill_token_s),
        ):
            if not isinstance(cost, int | float) or not 0 <= cost < float("inf"):
                raise InputError(f"admission.{name}={cost}: expected a number from 0 on")
        self._ttft_ps = None if ttft_s is None else to_ps(ttft_s)
        self._tpot_ps = None if tpot_s is None else to_ps(tpot_s)
        self._step_ps = to_ps(step_s)
        self._decode_sequence_ps = to_ps(decode_sequence_s)
        self._prefill_token_ps = to_ps(prefill_token_s)
        self.rejects = rejects and ttft_s is not None
        self._refused_step = -1
        self._deadline_ps: int | None = None

    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        deadline_ps = self._latest_start_ps(request, view)
        if deadline_ps is not None and self.env.now() > deadline_ps:
            return Admission.REJECT
        num_decodes = view.num_running_sequences + len(request.live)
        step_ps = self._step_ps + self._decode_sequence_ps * num_decodes
        is_slow = self._tpot_ps is not None and step_ps > self._tpot_ps and view.num_running > 0
        self._refused_step, self._deadline_ps = view.step, deadline_ps  # it may still lack memory
        return Admission.WAIT if is_slow else Admission.ADMIT

    def _latest_start_ps(self, request: Request, view: SchedulerView) -> int | None:
        """When it must start to have its first token in time; None: whenever."""
        if self._ttft_ps is None or not self.rejects or request.first_token_ps >= 0:
            return None
        num_new = request.live[0].num_known - view.num_cached_tokens(request)
        return request.arrival_ps + self._ttft_ps - self._step_ps - self._prefill_token_ps * num_new

    def next_change(self, now_ps: int, step: int) -> Change | None:
        if self._refused_step != step or self._deadline_ps is None:
            return None
        return Change(time_ps=self._deadline_ps)
