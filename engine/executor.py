"""Carries one step's plan out on tensors: block copies first, then the forward pass, then the next tokens."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from core.interfaces import Block
from core.plan import BlockCopy, StepPlan
from core.request import Request, Sequence
from engine.batch import BatchInput
from engine.beams import BeamSearches
from engine.decoder_shape import DecoderShape
from engine.kv_cache import PagedKV
from engine.row_tables import DeviceTables
from engine.sampling import Sampled, best, sample
from engine.shadow import Shadow
from engine.shared_prefixes import Sharing
from engine.step_inputs import StepInputs, StepPacker
from engine.step_planner import StepPlanner
from engine.step_row import StepRow, StepRows
from engine.tokens import SequenceTokens, TokenStore

NEAR_TIE_LOGITS = 1e-3
"""Two best logits closer than this may swap places when the order of additions changes."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 takes the best token. Others draw among the `top_k` best (0: all), and of these among the fewest
    that have `top_p` of the probability.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0


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


class PreparedStep(NamedTuple):
    """A plan, and what it says of sequences that the scheduler may change before the step is run. Without rows, when
    every running request was preempted, it has no inputs.
    """

    plan: StepPlan
    rows: StepRows
    inputs: StepInputs | None


class StepDecoder(Protocol):
    """A `Decoder`, or what stands in for it."""

    @property
    def device(self) -> torch.device: ...

    @property
    def shape(self) -> DecoderShape: ...

    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor: ...


class BlockMemory(Protocol):
    """What whole blocks are copied in: keys and values, and their shadow."""

    def copy_blocks(self, sources: SequenceOf[int], targets: SequenceOf[int]) -> None: ...

    def move_blocks(self, blocks: SequenceOf[int], other: BlockMemory, other_blocks: SequenceOf[int]) -> None: ...


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
        sampling: Sampling = Sampling(),
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
        self._memories: list[tuple[BlockMemory, BlockMemory | None]] = [(kv, host_kv)]
        if shadow is not None:
            self._memories.append((shadow.device, shadow.host))

    @property
    def num_near_ties(self) -> int:
        return len(self.near_ties)

    def prepare(self, plan: StepPlan) -> PreparedStep:
        """To be called when the plan has just been scheduled."""
        rows = self._planner.rows(plan)
        return PreparedStep(plan, rows, self._packer.inputs(rows) if rows else None)

    def run(self, step: PreparedStep) -> StepOutput:
        """Computes the step. Raises ShadowError where a sequence would read KV that is not its own."""
        plan, rows, inputs = step
        self._move_blocks(plan)
        if inputs is None:
            return StepOutput({}, frozenset(), {})
        batch = self._send(rows, inputs)
        if self._shadow is not None:
            self._shadow.write(rows, batch)
            self._shadow.check(plan, rows, batch)
        logits = self._decoder.forward(batch, self._kv)
        output = self._sample([row for row in rows if row.wants_logits], logits)
        if logits.device.type == "cuda":
            torch.cuda.synchronize(logits.device)  # or the clock would read the launch, not the work
        return output

    # ---- block operations -----------------------------------------------------------------------------------------

    def _move_blocks(self, plan: StepPlan) -> None:
        for copies, operation in (
            (plan.swap_outs, self._swap_out),
            (plan.swap_ins, self._swap_in),
            (_block_copies(plan.moves), self._copy),
            (plan.copies, self._copy),
        ):
            if copies:
                operation(copies)

    def _swap_out(self, copies: SequenceOf[BlockCopy]) -> None:
        sources, targets = zip(*copies, strict=True)
        for device, host in self._memories:
            device.move_blocks(sources, _present(host), targets)

    def _swap_in(self, copies: SequenceOf[BlockCopy]) -> None:
        sources, targets = zip(*copies, strict=True)
        for device, host in self._memories:
            _present(host).move_blocks(sources, device, targets)

    def _copy(self, copies: SequenceOf[BlockCopy]) -> None:
        sources, targets = zip(*copies, strict=True)
        for device, _ in self._memories:
            device.copy_blocks(sources, targets)

    # ---- the batch ------------------------------------------------------------------------------------------------

    def _block_tables(self, sequence: Sequence) -> SequenceOf[SequenceOf[Block | None]]:
        if not self._group_tables:
            return sequence.tables
        return [sequence.tables[table] for table in self._group_tables]

    def _send(self, rows: StepRows, inputs: StepInputs) -> BatchInput:
        return inputs.send(_token_ids(rows), self._tables, self._decoder.device)

    # ---- the next tokens ------------------------------------------------------------------------------------------

    def _sample(self, rows: SequenceOf[StepRow], logits: Tensor) -> StepOutput:
        """One token for every row of `logits`, or several where samples start from a fresh prompt."""
        if not any(row.sequence.request.is_beam_search for row in rows):
            return self._draw(rows, logits)
        places: dict[Request, list[int]] = {}
        drawn = []
        for place, row in enumerate(rows):
            request = row.sequence.request
            (places.setdefault(request, []) if request.is_beam_search else drawn).append(place)
        output = self._draw([rows[place] for place in drawn], logits[drawn])
        parents: dict[int, int] = {}
        for request, own in places.items():
            own.sort(key=lambda place: rows[place].sequence.rank)
            step = self.beams.advance(request, logits[own])
            output.tokens.update(step.tokens)
            parents |= step.parents
            self._note_search(request, step.margin)
        return StepOutput(output.tokens, output.stopped, parents)

    def _note_search(self, request: Request, margin: float) -> None:
        self.num_sampled += len(request.live)
        if margin < NEAR_TIE_LOGITS:
            position = self.tokens.of(request.live[0]).num_known - 1
            self.near_ties += [NearTie(request.request_id, beam.index, position) for beam in request.live]

    def _draw(self, rows: SequenceOf[StepRow], logits: Tensor) -> StepOutput:
        if not rows:
            return StepOutput({}, frozenset(), {})
        sequences, tokens = [row.sequence for row in rows], [row.tokens for row in rows]
        has_samples = any(sequence.request.num_samples > 1 for sequence in sequences)
        if has_samples:
            forks = [(place, sequence) for place, row in enumerate(rows) for sequence in _forked(row)]
            sequences += [sequence for _, sequence in forks]
            tokens += [self.tokens.of(sequence) for _, sequence in forks]
            logits = logits[[*range(len(rows)), *(place for place, _ in forks)]]
        sampled = self._next_tokens(sequences, tokens, logits)
        self.num_sampled += len(sequences)
        for sequence, known, margin in zip(sequences, tokens, sampled.margins.tolist(), strict=True):
            if margin < NEAR_TIE_LOGITS:
                self.near_ties.append(NearTie(sequence.request.request_id, sequence.index, known.num_known))
        if has_samples:
            self._score(sequences, tokens, logits, sampled.token_ids)
        return self._append(sequences, tokens, sampled.token_ids.tolist())

    def _next_tokens(
        self, sequences: SequenceOf[Sequence], tokens: SequenceOf[SequenceTokens], logits: Tensor
    ) -> Sampled:
        sampling = self._sampling
        if sampling.temperature == 0:
            return best(logits)
        return sample(
            logits,
            np.full(len(sequences), sampling.temperature),
            sampling.seed,
            np.array([sequence.request.request_id + (sequence.index << 32) for sequence in sequences], dtype=np.int64),
            np.array([known.num_known for known in tokens], dtype=np.int64),
            sampling.top_k,
            sampling.top_p,
        )

    def _score(
        self, sequences: SequenceOf[Sequence], tokens: SequenceOf[SequenceTokens], logits: Tensor, drawn: Tensor
    ) -> None:
        """Adds the log probability of each token to its sample's, where there are others to compare with."""
        places = [place for place, sequence in enumerate(sequences) if sequence.request.num_samples > 1]
        if places:
            log_probabilities = logits[places].double().log_softmax(dim=-1).gather(1, drawn[places][:, None])
            for place, value in zip(places, log_probabilities.flatten().tolist(), strict=True):
                tokens[place].score += value

    def _append(
        self, sequences: SequenceOf[Sequence], tokens: SequenceOf[SequenceTokens], sampled: SequenceOf[int]
    ) -> StepOutput:
        new: dict[int, list[int]] = {}
        stopped = []
        for sequence, known, token_id in zip(sequences, tokens, sampled, strict=True):
            token = known.append(token_id)
            if sequence.rank >= 0:  # samples get their rank when the step is committed
                new[sequence.rank] = [token]
                if self.tokens.output.stops(token):
                    stopped.append(sequence.rank)
        return StepOutput(new, frozenset(stopped), {})


def _token_ids(rows: StepRows) -> np.ndarray:
    """int64 [num_tokens]: what each row computes, one after another; rows of one token come first."""
    num_single = int(np.count_nonzero(rows.num_new == 1))
    places = zip(rows.tokens[:num_single], rows.start[:num_single].tolist(), strict=True)
    single = np.array([tokens.at(position) for tokens, position in places], dtype=np.int64)
    if len(rows) == num_single:
        return single
    return np.concatenate([single, *(row.tokens.known[row.start : row.end] for row in rows[num_single:])])


def _block_copies(moves: Mapping[int, int]) -> list[BlockCopy]:
    return [BlockCopy(source_id, target_id) for target_id, source_id in moves.items()]


def _forked(row: StepRow) -> list[Sequence]:
    """The samples that begin with this row's logits: their prompt was computed once, by the row's sequence."""
    request = row.sequence.request
    if request.num_samples == 1 or row.tokens.num_outputs:
        return []
    return [sequence for sequence in request.live if sequence.rank < 0]


def _present(host: BlockMemory | None) -> BlockMemory:
    if host is None:
        raise ValueError("the plan swaps blocks, but the executor was given no host memory")
    return host
