"""A request and its sequences: what is known, what has KV, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from core.content import BlockKeys
from core.numbered_text import NumberedText

if TYPE_CHECKING:
    from core.decode_batch import DecodeBatch
    from core.swap import SwappedKV


BlockTable = Any
"""A sequence's blocks by position: a list of `Block`, None where one left its window; or, where the pool keeps runs, an
array of block ids.
"""


class Status(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    DONE = "done"


class Outcome(Enum):
    """How a request ended. Order is that of `outcome_names` in a run's requests."""

    __hash__ = object.__hash__  # members are singletons; Enum's own hash is a Python call

    FINISHED = "finished"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    UNFINISHED = "unfinished"


class Sequence:
    """One continuation of a request's prompt: its known tokens, and the block tables (one per KV group) of those with
    KV.

    While it decodes it is a member of the `DecodeBatch`, which advances all members at once; `num_computed` and
    `num_known` then come from there.
    """

    # A run makes one for every request: what begins alike is not stored anew.
    stored_computed: int = 0
    num_registered: int = 0  # leading blocks of the tables that are in the prefix index
    rank: int = -1  # place in running order; -1 while not running
    batch: DecodeBatch | None = None
    offset: int = 0  # num_computed - batch.clock, while a member
    end_clock: int = -1  # the batch's clock when its last output is out, while a member
    last_token_ps: int = -1  # when its newest token appeared; kept only where the batch does not imply it
    num_surplus_tokens: int = 0  # slots of its tables beyond the last token that it will ever have KV for
    num_had_kv: int = 0  # tokens that had KV when it was last preempted: computing them again is recomputation
    lost_ahead: list[int] | None = None  # by which eviction each of its next blocks is not cached
    first_lost: int = 0  # index of the block that `lost_ahead` begins with
    text: NumberedText | None = None  # what its blocks hold, where the pool keeps runs; once it was looked up

    def __init__(
        self, request: Request, index: int, keys: BlockKeys, tables: list[BlockTable], stored_known: int
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.index = index
        self.keys = keys
        self.tables = tables
        self.stored_known = stored_known
        self.num_peak_blocks = 0  # of each of its tables at its end; told by the tables it gets

    @property
    def num_computed(self) -> int:
        """Tokens that have KV (those scheduled in the current step included)."""
        return self.stored_computed if self.batch is None else self.batch.clock + self.offset

    @property
    def num_known(self) -> int:
        """Prompt and outputs so far. The last one sampled has no KV yet."""
        return self.stored_known if self.batch is None else self.batch.num_emitted + self.offset + 1

    @property
    def num_outputs(self) -> int:
        return self.num_known - self.request.num_prompt_tokens


class Request:
    """What a client asked for, and the record of what it got. Times in picoseconds, -1 where it never happened.

    `num_output_tokens` is where it stops, which no engine knows beforehand; `max_new_tokens` is what the client allows,
    never less. With `num_samples` > 1 the prompt is computed once and every sample decodes from it. The samples of a
    beam search are its beams: they advance together, and after a step one may go on from another's text.
    """

    # A run makes very many: what begins alike is not stored anew.
    is_beam_search: bool = False
    tenant: int = 0
    category: int = 0  # what kind of request: policies may tell categories apart
    cancel_ps: int = -1
    session_id: int = -1  # equal for the turns of one conversation; -1: its source knows of none

    status: Status = Status.WAITING
    outcome: Outcome = Outcome.UNFINISHED
    reject_reason: str = ""  # given by its source, it is turned away for that on arrival
    rank: int = -1  # that of its first running sequence: its place in running order
    queue_position: int = 0
    swapped: SwappedKV | None = None

    first_scheduled_ps: int = -1
    first_token_ps: int = -1
    finish_ps: int = -1
    num_produced_tokens: int = 0
    num_cached_tokens: int = -1  # prefix hit at the first admission; -1 before it
    num_readmission_cached_tokens: int = 0
    num_preemptions: int = 0
    num_prefill_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_recomputed_evicted_tokens: int = 0  # computed although they had been cached, and were evicted

    def __init__(
        self,
        request_id: int,
        arrival_ps: int,
        num_prompt_tokens: int,
        num_output_tokens: int,
        keys: BlockKeys,
        priority: int = 0,
        num_samples: int = 1,
        max_new_tokens: int = 0,  # 0: just as many as it produces
        **further: object,
    ) -> None:
        """`further`: any of `is_beam_search`, `tenant`, `category`, `cancel_ps`, `session_id`."""
        self.request_id = request_id
        self.arrival_ps = arrival_ps
        self.num_prompt_tokens = num_prompt_tokens
        self.num_output_tokens = num_output_tokens
        self.keys = keys
        self.priority = priority
        self.num_samples = num_samples
        self.max_new_tokens = max_new_tokens if max_new_tokens > num_output_tokens else num_output_tokens
        self.sequences: list[Sequence] = []
        self.live: list[Sequence] = []  # those that have not ended
        if further:
            self._set(further)

    def _set(self, further: Mapping[str, object]) -> None:
        for name, value in further.items():
            if name not in _FURTHER:
                raise TypeError(f"a request has no {name!r}")
            setattr(self, name, value)

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id}, {self.num_prompt_tokens} prompt and {self.num_output_tokens} output tokens, "
            f"{self.status.value})"
        )

    def restart_search(self) -> None:
        """A beam search that is about to lose its KV begins again from its prompt, which leads it to the same beams.

        Beams that came back one by one could not be compared with each other.
        """
        for sequence in self.live:
            self.num_recomputed_tokens += max(0, sequence.stored_known - 1 - self.num_prompt_tokens)
            sequence.stored_known = self.num_prompt_tokens

    def num_public(self, num_tokens: int) -> int:
        """How many of a sequence's first `num_tokens` others may find in the prefix index: a beam's prompt only, since
        whose text a block holds changes from step to step.
        """
        return min(num_tokens, self.num_prompt_tokens) if self.is_beam_search else num_tokens

    @property
    def num_peak_tokens(self) -> int:
        """Tokens of a sequence that have KV at its end: the last one sampled never has."""
        return self.num_prompt_tokens + self.num_output_tokens - 1


_FURTHER = {"is_beam_search", "tenant", "category", "cancel_ps", "session_id"}
