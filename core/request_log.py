"""What became of the requests, a row each in arrays: a request that is done leaves nothing else behind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.int_column import MOST_NEW, IntColumn
from core.packing import narrowed
from core.request import Outcome, Request

Ints = NDArray[np.int64]

COUNTS = (
    "num_prompt_tokens",
    "num_output_tokens",  # produced, by all samples
    "num_samples",
    "num_cached_tokens",
    "num_readmission_cached_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
    "num_recomputed_evicted_tokens",
    "num_prefill_tokens",
)
TIMES = ("arrival_ps", "first_scheduled_ps", "first_token_ps", "finish_ps")
_NAMES = ("request_id", *TIMES, *COUNTS, "outcome")
_OUTCOMES = list(Outcome)
_NUMBER_OF: Final = {outcome: number for number, outcome in enumerate(Outcome)}
_REJECTED: Final = Outcome.REJECTED  # to ask an Enum for a member takes longer
_UNFINISHED: Final = Outcome.UNFINISHED
_NUM_VALUES_PACKED_AT_ONCE: Final = 4096 * len(_NAMES)


class RequestLog:
    """A row per request, in the order in which they were done. Most are packed: some 50 bytes a request."""

    def __init__(self) -> None:
        self._packed: list[list[Ints]] = []  # the columns of so many at a time, in integers no wider than they need
        self._num_packed = 0
        self._values = IntColumn()  # those since, row after row
        self.num_rejected = 0
        self.first_rejected: tuple[int, str] | None = None  # the least id, and why

    def __len__(self) -> int:
        return self._num_packed + len(self._values) // len(_NAMES)

    def add(self, request: Request) -> None:
        """Notes the request as it is now."""
        if request.outcome is _REJECTED:
            self.num_rejected += 1
            rejected = (request.request_id, request.reject_reason)
            self.first_rejected = min(rejected, self.first_rejected or rejected)
        num_produced = request.num_produced_tokens
        if request.outcome is _UNFINISHED:
            num_produced += sum(sequence.num_outputs for sequence in request.live)
        self._values.new += (
            request.request_id,
            request.arrival_ps,
            request.first_scheduled_ps,
            request.first_token_ps,
            request.finish_ps,
            request.num_prompt_tokens,
            num_produced,
            request.num_samples,
            request.num_cached_tokens if request.num_cached_tokens > 0 else 0,
            request.num_readmission_cached_tokens,
            request.num_preemptions,
            request.num_recomputed_tokens,
            request.num_recomputed_evicted_tokens,
            request.num_prefill_tokens,
            _NUMBER_OF[request.outcome],
        )
        if len(self._values.new) >= MOST_NEW:
            self._values.pack()
        if len(self._values) >= _NUM_VALUES_PACKED_AT_ONCE:
            self._pack()

    def _pack(self) -> None:
        self._packed.append([narrowed(column) for column in self._rows().T])
        self._num_packed = len(self)
        self._values = IntColumn()

    def _rows(self) -> Ints:
        """Those that are not packed, [requests, values]."""
        return np.frombuffer(self._values.packed(), dtype=np.int64).reshape(-1, len(_NAMES))

    def with_others(self, requests: Iterable[Request]) -> RequestLog:
        """A copy that also has these requests, as they are now."""
        both = RequestLog()
        both._packed, both._num_packed = self._packed[:], self._num_packed
        both._values.new += self._rows().ravel().tolist()
        for request in requests:
            both.add(request)
        return both

    def column(self, name: str) -> Ints:
        """One value of every request, [num_requests]: an id, a time (-1: it never came), a count, or an outcome's place
        in `Outcome`.
        """
        place = _NAMES.index(name)
        parts = [columns[place] for columns in self._packed]
        return np.concatenate([*parts, self._rows()[:, place]], dtype=np.int64)

    def outcomes(self) -> list[Outcome]:
        """How each request ended, in the order of the rows."""
        return [_OUTCOMES[number] for number in self.column("outcome").tolist()]
