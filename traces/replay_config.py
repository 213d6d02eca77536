"""How a trace is replayed, and who its requests are in a whole. A file of its own, for other processes are sent it."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum


class Arrivals(Enum):
    """When requests arrive: as the trace says, or by a rule that ignores its times."""

    RECORDED = "recorded"  # turns of a session: think time after the answer before, where it is known
    SEQUENTIAL = "sequential"  # one request at a time
    ALL_AT_ONCE = "all_at_once"  # sessions still wait for their answers
    CLOSED_LOOP = "closed_loop"  # `concurrency` clients, each sends its next request when it has its answer


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    block_size_tokens: int
    arrivals: Arrivals = Arrivals.RECORDED
    concurrency: int = 1
    max_model_len: int | None = None  # a row with more tokens than that is rejected
    max_new_tokens: int | None = None  # what every client allows, or its row's output where that is more; None: that
    outputs_as_recorded: bool = True  # False: the model makes up its own outputs, which nobody else shares
    num_samples: int | None = None  # of every request; None: its row's
    beam_width: int | None = None  # every request is a beam search of that width; None: none is


@dataclass(frozen=True, slots=True)
class Names:
    """Who the requests of a part of a trace are in the whole: by row of the part, ascending."""

    request_ids: list[int]
    session_ids: list[int]

    def row(self, request_id: int) -> int:
        """O(log n)."""
        return bisect_left(self.request_ids, request_id)
