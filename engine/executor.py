"""Carries steps out on tensors: block copies first, then the forward pass, then the next tokens."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from core.interfaces import Block
from core.plan import BlockCopy, StepPlan
from core.request import Request, Sequence
from engine.batch import BatchInput
from engine.beams import BeamSearches
from engine.decoder_shape import DecoderShape
from engine.draws import GREEDY, Drawn, Draws, Sampling
from engine.host_kv import HostKV
from engine.kv_cache import PagedKV
from engine.row_tables import DeviceTables
from engine.shadow import Shadow
from engine.shared_prefixes import Sharing
from engine.step_inputs import StepInputs, StepPacker
from engine.step_planner import StepPlanner
from engine.step_row import StepRow, StepRows
from engine.tokens import SequenceTokens, TokenStore
from engine.transfers import NOTHING, Reading, Sender

NEAR_TIE_LOGITS = 1e-3
"""Two best logits closer than this may swap places when the order of additions changes."""


class NearTie(NamedTuple):
    """A token that may come out differently in another batch: `position` counts prompt and outputs."""

    request_id: int
    sample: int
    position: int


class StepOutput(NamedTuple):
    """As in `StepResult`, by the sequence's rank: new tokens, who ends by itself, which beam goes on from which."""

    tokens: dict[int, list[int]]
    stopped: frozenset[int]
    parents: Mapping[int, int]


@dataclass(slots=True)
class PreparedStep:
    """A plan, and what it says of sequences that the scheduler may change before the step is run.

    inputs: None where there are no rows, because every running request was preempted. running: what it left on the
    device, once it has begun; nothing where there are no inputs.
    """

    plan: StepPlan
    rows: StepRows
    inputs: StepInputs | None
    has_begun: bool = False
    running: RunningStep | None = None


class RunningStep(NamedTuple):
    """What a step that has begun leaves on the device; `logits` are kept where beam searches want them."""

    batch: BatchInput
    draws: Draws
    token_ids: Tensor
    results: Reading
    logits: Tensor | None


class Newest(NamedTuple):
    """The tokens that the last step brought, and whom."""

    sequences: SequenceOf[Sequence]
    token_ids: list[int]


class StepDecoder(Protocol):
    """A `Decoder`, or what stands in for it."""

    @property
    def device(self) -> torch.device: ...

    @property
    def shape(self) -> DecoderShape: ...

    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor: ...


class HostMemory(Protocol):
    """Where swapped blocks lie: keys and values, or their shadow."""

    def move_blocks(self, blocks: SequenceOf[int], other: Any, other_blocks: SequenceOf[int]) -> None: ...


class BlockMemory(HostMemory, Protocol):
    """What whole blocks are copied in, too."""

    def copy_blocks(self, sources: SequenceOf[int], targets: SequenceOf[int]) -> None: ...


class Memory(NamedTuple):
    device: BlockMemory
    host: HostMemory | None


class TorchExecutor:
    """Runs plans of single steps, all that were prepared, in that order. Block ids of the plan, of whatever KV group,
    index `kv` and `host_kv`.

    `num_sampled` counts the positions at which a token was due; `near_ties` are those whose two best logits lie within
    NEAR_TIE_LOGITS. With a `shadow`, every block operation is repeated on its tags and every read is checked.
    `sharing`: when decodes read a prefix that they share once for all of them, of each KV group. `group_tables`: which
    of a sequence's tables each of the decoder's groups reads, where these are not the plan's.
    """

    def __init__(
        self,
        decoder: StepDecoder,
        kv: PagedKV,
        host_kv: PagedKV | None,
        tokens: TokenStore,
        sampling: Sampling = GREEDY,
        shadow: Shadow | None = None,
        sharing: Sharing = (),
        group_tables: SequenceOf[int] = (),
    ) -> None:
        self.tokens = tokens
        self.num_sampled = 0
        self.near_ties: list[NearTie] = []
        self.beams = BeamSearches(tokens)
        self._decoder = decoder
        self._kv = kv
        self._sampling = sampling
        self._shadow = shadow
        self._group_tables = group_tables
        self._packer = StepPacker(len(decoder.shape.kv_groups()), kv.block_size, sharing)
        self._planner = StepPlanner(tokens, self._packer.tables, self._block_tables)
        self._tables = DeviceTables(decoder.device)
        self._sender = Sender(decoder.device)
        self._host = None if host_kv is None else HostKV(host_kv)
        self._memory = Memory(kv, self._host)
        self._unfinished: RunningStep | None = None
        self._newest = Newest([], [])
        self._last_draws: Draws | None = None

    @property
    def num_near_ties(self) -> int:
        return len(self.near_ties)

    @property
    def overlaps(self) -> bool:
        """Whether a step that has begun is computed while the host goes on."""
        return self._decoder.device.type == "cuda"

    def prepare(self, plan: StepPlan) -> PreparedStep:
        """To be called when the plan has just been scheduled."""
        rows = self._planner.rows(plan)
        return PreparedStep(plan, rows, self._packer.inputs(rows) if rows else None)

    def begin(self, step: PreparedStep) -> None:
        """Gives the step to the device, behind the one that may still run there, and waits for nothing; where steps do
        not overlap, leaves it to `run`.

        A sequence whose newest token is only on its way takes it from the device.
        """
        if self.overlaps:
            self._start(step)

    def run(self, step: PreparedStep) -> StepOutput:
        """The step's output, when it is done. Raises ShadowError where a sequence read KV that was not its own."""
        self._start(step)
        running = step.running
        if running is self._unfinished:
            self._unfinished = None
        if self._shadow is not None:
            self._check(step, self._shadow, running)
        if running is None:
            return StepOutput({}, frozenset(), {})
        output = self._append(running.draws, running.draws.drawn(running.results.wait().numpy()))
        if self._host is not None:
            self._host.settle()
        if running.logits is not None:
            output = self._search(output, [row for row in step.rows if row.wants_logits], running.logits)
        return output

    def _start(self, step: PreparedStep) -> None:
        """Once for each step: blocks that it moved may hold something else by now."""
        if not step.has_begun:
            step.has_begun = True
            step.running = self._begin(step)

    @torch.inference_mode()
    def _begin(self, step: PreparedStep) -> RunningStep | None:
        self._move_blocks(step.plan, self._memory)
        if step.inputs is None:
            return None
        draws = self._draws(step.rows)
        batch, further = self._send(step.rows, step.inputs, draws.arrays())
        logits = self._decoder.forward(batch, self._kv)
        token_ids, results = draws.compute(logits, *further)
        self._unfinished = RunningStep(
            batch, draws, token_ids, Reading(results), logits if draws.beside_searches else None
        )
        return self._unfinished

    def _draws(self, rows: StepRows) -> Draws:
        last = self._last_draws
        if last is not None and last.sequences is rows.sequences:  # every row draws, as in the step before
            draws = last.a_token_further()
        else:
            draws = Draws.of(rows, self.tokens, self._sampling)
        self._last_draws = draws
        return draws

    def _check(self, step: PreparedStep, shadow: Shadow, running: RunningStep | None) -> None:
        """Repeats what the step did on the tags, once all of its tokens are known."""
        self._move_blocks(step.plan, Memory(shadow.device, shadow.host))
        if running is not None:
            shadow.write(step.rows, running.batch)
            shadow.check(step.plan, step.rows, running.batch)

    # ---- block operations -----------------------------------------------------------------------------------------

    def _move_blocks(self, plan: StepPlan, memory: Memory) -> None:
        for copies, operation in (
            (plan.swap_outs, self._swap_out),
            (plan.swap_ins, self._swap_in),
            (_block_copies(plan.moves), self._copy),
            (plan.copies, self._copy),
        ):
            if copies:
                operation(copies, memory)

    def _swap_out(self, copies: SequenceOf[BlockCopy], memory: Memory) -> None:
        sources, targets = zip(*copies, strict=True)
        memory.device.move_blocks(sources, _present(memory.host), targets)

    def _swap_in(self, copies: SequenceOf[BlockCopy], memory: Memory) -> None:
        sources, targets = zip(*copies, strict=True)
        _present(memory.host).move_blocks(sources, memory.device, targets)

    def _copy(self, copies: SequenceOf[BlockCopy], memory: Memory) -> None:
        sources, targets = zip(*copies, strict=True)
        memory.device.copy_blocks(sources, targets)

    # ---- the batch ------------------------------------------------------------------------------------------------

    def _block_tables(self, sequence: Sequence) -> SequenceOf[SequenceOf[Block | None]]:
        if not self._group_tables:
            return sequence.tables
        return [sequence.tables[table] for table in self._group_tables]

    def _send(
        self, rows: StepRows, inputs: StepInputs, further: SequenceOf[np.ndarray]
    ) -> tuple[BatchInput, list[Tensor]]:
        coming = self._tokens_to_come(rows)
        batch, sent = inputs.send(self._token_ids(rows), [*coming, *further], self._tables, self._sender)
        if self._unfinished is not None and len(coming[0]):
            batch.token_ids.index_copy_(0, sent[0], self._unfinished.token_ids.index_select(0, sent[1]))
        return batch, sent[len(coming) :]

    def _token_ids(self, rows: StepRows) -> np.ndarray:
        """int64 [num_tokens]: what each row computes, one after another; rows of one token come first. Anything where
        the token is yet to come.
        """
        if self._unfinished is None and rows.sequences is self._newest.sequences:
            return np.array(self._newest.token_ids, dtype=np.int64)  # the same decodes as in the step before
        num_single = int(np.count_nonzero(rows.num_new == 1))
        places = zip(rows.tokens[:num_single], rows.start[:num_single].tolist(), strict=True)
        single = np.array([tokens.at(position) for tokens, position in places], dtype=np.int64)
        if len(rows) == num_single:
            return single
        return np.concatenate([single, *(row.tokens.known[row.start : row.end] for row in rows[num_single:])])

    def _tokens_to_come(self, rows: StepRows) -> tuple[np.ndarray, np.ndarray]:
        """Decodes whose token the step that still runs brings, and the places of these among its draws."""
        if self._unfinished is None:
            return NOTHING, NOTHING
        draw_of = {sequence: draw for draw, sequence in enumerate(self._unfinished.draws.sequences)}
        columns = zip(rows.sequences, rows.tokens, rows.start.tolist(), strict=True)
        places = [
            (place, draw_of[sequence])
            for place, (sequence, tokens, start) in enumerate(columns)
            if start >= tokens.num_known and not tokens.is_forced
        ]
        into, draws = np.array(places, dtype=np.int64).reshape(-1, 2).T
        return into, draws

    # ---- the next tokens ------------------------------------------------------------------------------------------

    def _append(self, draws: Draws, drawn: Drawn) -> StepOutput:
        self.num_sampled += len(draws)
        for draw, score in zip(draws.scored.tolist(), drawn.scores, strict=True):
            draws.tokens[draw].score += score
        for draw in (drawn.margins < NEAR_TIE_LOGITS).nonzero()[0].tolist():
            sequence, position = draws.sequences[draw], int(draws.positions[draw])
            self.near_ties.append(NearTie(sequence.request.request_id, sequence.index, position))
        token_ids = list(map(SequenceTokens.append, draws.tokens, drawn.token_ids))
        self._newest = Newest(draws.sequences, token_ids)
        ranks = list(map(_rank, draws.sequences))
        new = dict(zip(ranks, map(list, zip(token_ids, strict=True)), strict=True))
        new.pop(-1, None)  # samples get their ranks when the step is committed
        stopped = {ranks[draw] for draw in self.tokens.output.stopping(token_ids)}
        return StepOutput(new, frozenset(stopped - {-1}), {})

    def _search(self, output: StepOutput, rows: SequenceOf[StepRow], logits: Tensor) -> StepOutput:
        """Adds what beam searches found in their rows of `logits`."""
        places: dict[Request, list[int]] = {}
        for place, row in enumerate(rows):
            if row.sequence.request.is_beam_search:
                places.setdefault(row.sequence.request, []).append(place)
        parents: dict[int, int] = {}
        for request, own in places.items():
            own.sort(key=lambda place: rows[place].sequence.rank)
            step = self.beams.advance(request, logits[own])
            output.tokens.update(step.tokens)
            parents |= step.parents
            self._note_search(request, step.margin)
        return output._replace(parents=parents)

    def _note_search(self, request: Request, margin: float) -> None:
        self.num_sampled += len(request.live)
        if margin < NEAR_TIE_LOGITS:
            position = self.tokens.of(request.live[0]).num_known - 1
            self.near_ties += [NearTie(request.request_id, beam.index, position) for beam in request.live]


_rank = attrgetter("rank")


def _block_copies(moves: Mapping[int, int]) -> list[BlockCopy]:
    return [BlockCopy(source_id, target_id) for target_id, source_id in moves.items()]


def _present(host: HostMemory | None) -> HostMemory:
    if host is None:
        raise ValueError("the plan swaps blocks, but the executor was given no host memory")
    return host
