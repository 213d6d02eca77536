"""The plan of one step (or of a span of alike steps), and what came of it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import NamedTuple

from core.decode_batch import DecodeBatch
from core.request import Request, Sequence


class Chunk:
    """`num_new` tokens of a prompt (or of a preempted request's text) to compute, after `num_computed` with KV."""

    __slots__ = ("num_computed", "num_new", "sequence")

    def __init__(self, sequence: Sequence, num_computed: int, num_new: int) -> None:
        self.sequence = sequence
        self.num_computed = num_computed
        self.num_new = num_new


class BlockCopy(NamedTuple):
    """Copy a whole block; ids are of the device pool, or of the host pool on the host's side of a swap."""

    source_id: int
    target_id: int


class Scheduled(NamedTuple):
    sequence: Sequence
    num_computed: int  # before this step
    num_new: int


@dataclass(slots=True)
class StepPlan:
    """What to do in one step. Order on the device: `swap_outs`, `swap_ins`, `moves`, `copies`, then the forward
    pass.

    Decodes are not listed: they are the members of the decode batch, less `held` ones; `decodes()` walks them for an
    executor that must. `max_steps` > 1 offers a span: that many steps of this very shape follow one another unless
    something arrives. `window_frees` are blocks that left a sliding window. `num_draft`, `transfers` and
    `compactions` are reserved for drafts, tiers and token eviction; nothing fills them yet.
    """

    step: int
    now_ps: int
    batch: DecodeBatch
    start_ps: int = field(init=False)  # when it starts to run: now, or once the plan before it has ended
    chunks: list[Chunk] = field(default_factory=list)
    num_prefill_tokens: int = 0
    num_decodes: int = 0
    decode_context_tokens: int = 0  # KV tokens that the decodes read in the first step, their own new ones included
    held: set[int] = field(default_factory=set)  # ranks of decoding sequences that get nothing in this step
    late: list[Sequence] = field(default_factory=list)  # decode now, but did not in the step before
    num_filled_tokens: int = 0  # slots of referenced blocks that hold a token, those of the first step included
    num_lost_decodes: int = 0  # decodes of the running step whose request was cancelled meanwhile
    first_or_late: list[tuple[Sequence, int]] = field(default_factory=list)  # with a token and when its last one came
    max_steps: int = 1
    is_unpriced: bool = False  # of the span that is offered no more than its first step has a price
    num_steps: int = 1  # steps whose blocks are taken

    admitted: list[Request] = field(default_factory=list)
    hit_tokens: dict[int, int] = field(default_factory=dict)  # request id -> prefix hit of this step's admission
    preempted: list[Request] = field(default_factory=list)
    num_preempted: int = 0  # with those of empty plans just before
    blocked: list[Request] = field(default_factory=list)  # one entry per failed attempt to allocate
    rejected: list[Request] = field(default_factory=list)  # by the admission policy, and so done

    swap_outs: list[BlockCopy] = field(default_factory=list)
    swap_ins: list[BlockCopy] = field(default_factory=list)
    searches: SequenceOf[Request] = ()  # beam searches that advance in this step
    moves: dict[int, int] = field(default_factory=dict)  # target block -> source: all are read before one is written
    copies: list[BlockCopy] = field(default_factory=list)
    window_frees: list[int] = field(default_factory=list)
    num_draft: int = 0
    transfers: SequenceOf[BlockCopy] = ()
    compactions: SequenceOf[BlockCopy] = ()

    num_running: int = 0
    num_waiting: int = 0

    def __post_init__(self) -> None:
        self.start_ps = self.now_ps

    @property
    def is_empty(self) -> bool:
        """Nothing to carry out. It can be: every running request waits for room, or nobody may be admitted."""
        return not self.chunks and not self.num_decodes and not self.swap_outs

    def move(self, source_id: int, target_id: int) -> None:
        """A block's content goes from one place to another; what was to come to the source goes on to the target."""
        self.moves[target_id] = self.moves.pop(source_id, source_id)

    def decoding(self) -> list[Sequence]:
        """The sequences that decode, in running order. O(running log running), without a call for each."""
        members = self.batch.members
        return [members[rank] for rank in sorted(members) if rank not in self.held]

    def decodes(self) -> Iterator[Scheduled]:
        """What `decoding` sequences compute. O(running): for the engine and for parity."""
        for sequence in self.decoding():
            yield Scheduled(sequence, sequence.num_computed - 1, 1)

    def scheduled(self) -> Iterator[Scheduled]:
        """All sequences with work in this step, in running order."""
        chunks = (Scheduled(chunk.sequence, chunk.num_computed, chunk.num_new) for chunk in self.chunks)
        return heapq.merge(self.decodes(), chunks, key=lambda item: item.sequence.rank)


@dataclass(slots=True)
class StepResult:
    """What an executor reports: how long each step of the span took, and (from an engine) the tokens it sampled.

    `tokens` maps a sequence's rank to its new tokens (one, or more once drafts are accepted); None: the outputs are the
    trace's and only their number matters. `stopped` are ranks that end here by themselves (end of sequence). `parents`
    maps the rank of a beam that was dropped to that of the one whose text and KV it goes on from, which stays as it is.
    """

    durations_ps: SequenceOf[int]
    tokens: Mapping[int, list[int]] | None = None
    stopped: frozenset[int] = frozenset()
    parents: Mapping[int, int] = field(default_factory=dict)
