"""Highest response ratio next, by SGLang's clock of tokens or by time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from core.errors import InputError
from core.interfaces import PolicyEnv, QueuePolicy, SchedulerView
from core.request import Request
from core.units import PS_PER_S


class HRRN(QueuePolicy):
    """Greatest (waited + to compute) / to compute first: short prompts, but long ones grow with their wait.

    `clock="tokens"`: waited are the prompt tokens that were computed since the request joined the queue, to compute are
    those of its prompt that are not cached (SGLang's `hrrn`; first come, first served while more than 128 wait, its
    `max_waiting`). `clock="time"`: the classical form, with a prompt that takes `prefill_tokens_per_s`. Ties in order
    of arrival. Re-sorted in every step in which somebody could be admitted, with a look-up of each prompt.
    """

    def __init__(
        self,
        env: PolicyEnv,
        clock: str = "tokens",
        max_waiting: int = 128,
        prefill_tokens_per_s: float = 10_000.0,
    ) -> None:
        super().__init__(env)
        if clock not in ("tokens", "time"):
            raise InputError(f"queue.clock={clock}: expected tokens or time")
        if not isinstance(max_waiting, int) or max_waiting < 1:
            raise InputError(f"queue.max_waiting={max_waiting}: expected a whole number of at least 1")
        if not isinstance(prefill_tokens_per_s, int | float) or not 0 < prefill_tokens_per_s < float("inf"):
            raise InputError(f"queue.prefill_tokens_per_s={prefill_tokens_per_s}: expected a number above 0")
        self.window = max_waiting
        self._by_time = clock == "time"
        self._tokens_per_ps = prefill_tokens_per_s / PS_PER_S
        self._joined: dict[Request, int] = {}  # the clock when it did

    def key(self, request: Request) -> Any:
        return request.queue_position

    def on_join(self, request: Request, view: SchedulerView) -> None:
        self._joined[request] = self.env.now() if self._by_time else view.num_prefill_tokens

    def on_leave(self, request: Request, view: SchedulerView) -> None:
        del self._joined[request]

    def rerank(self, heads: Sequence[Request], view: SchedulerView) -> Iterable[Request]:
        if view.num_waiting > self.window:
            return heads
        return sorted(heads, key=lambda request: -self._ratio(request, view))

    def _ratio(self, request: Request, view: SchedulerView) -> float:
        """The ratio less 1, which orders alike."""
        if self._by_time:
            waited = (self.env.now() - self._joined[request]) * self._tokens_per_ps
        else:
            waited = float(view.num_prefill_tokens - self._joined[request])
        return waited / (request.live[0].num_known - view.num_cached_tokens(request))
