"""A step's next tokens: whom they are for, how the device finds them, and what the host reads when the step is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.request import Request, Sequence
from engine.sampling import sample, uniform_draws
from engine.step_row import StepRows
from engine.tokens import SequenceTokens, TokenStore
from engine.transfers import NOTHING


@dataclass(frozen=True, slots=True)
class Sampling:
    """Temperature 0 takes the best token. Others draw among the `top_k` best (0: all), and of these among the fewest
    that have `top_p` of the probability.
    """

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0


GREEDY = Sampling()


class Drawn(NamedTuple):
    """On the host. token_ids, margins (fp64): of every draw; scores: log probabilities, of `Draws.scored`."""

    token_ids: list[int]
    margins: np.ndarray
    scores: list[float]


@dataclass(frozen=True, slots=True)
class Draws:
    """One token each for `sequences`, of which several may draw from one row of logits: samples of a fresh prompt.

    positions: int64, of the tokens drawn; logit_rows: int64 [num_draws]; num_logits: rows of logits that the step
    computes; scored: places of the draws whose log probability is wanted, since there are other samples to compare
    with; beside_searches: whether beam searches, which do not draw, want some of the logits.
    """

    sampling: Sampling
    sequences: list[Sequence]
    tokens: list[SequenceTokens]
    positions: np.ndarray
    logit_rows: np.ndarray
    num_logits: int
    scored: np.ndarray
    beside_searches: bool = False

    @classmethod
    def of(cls, rows: StepRows, store: TokenStore, sampling: Sampling) -> Draws:
        """Of the rows that want logits, in their order."""
        wanted = np.flatnonzero(rows.wants_logits)
        sequences, tokens, ends = rows.sequences, rows.tokens, rows.start + rows.num_new
        if len(wanted) < len(rows):
            places = wanted.tolist()
            sequences, tokens, ends = [sequences[row] for row in places], [tokens[row] for row in places], ends[wanted]
        plain = cls(sampling, sequences, tokens, ends, np.arange(len(wanted)), len(wanted), NOTHING)
        if all(sequence.request.num_samples == 1 and not sequence.request.is_beam_search for sequence in sequences):
            return plain
        return plain._with_samples(store)

    def _with_samples(self, store: TokenStore) -> Draws:
        """The samples that begin draw, too; beam searches do not."""
        drawing = zip(self.sequences, self.tokens, self.positions.tolist(), range(self.num_logits), strict=True)
        draws = [draw for draw in drawing if not draw[0].request.is_beam_search]
        for sequence, tokens, position, row in draws[:]:
            draws += [(fork, store.of(fork), position, row) for fork in _forks(sequence.request, tokens)]
        scored = [place for place, draw in enumerate(draws) if draw[0].request.num_samples > 1]
        sequences_drawing, tokens_drawing, positions, logit_rows = zip(*draws, strict=True) if draws else [()] * 4
        return Draws(
            self.sampling,
            list(sequences_drawing),
            list(tokens_drawing),
            np.array(positions, dtype=np.int64),
            np.array(logit_rows, dtype=np.int64),
            self.num_logits,
            np.array(scored, dtype=np.int64),
            any(sequence.request.is_beam_search for sequence in self.sequences),
        )

    def a_token_further(self) -> Draws:
        """Those of rows that follow, where each row draws once."""
        return Draws(
            self.sampling,
            self.sequences,
            self.tokens,
            self.positions + 1,
            self.logit_rows,
            self.num_logits,
            self.scored,
            self.beside_searches,
        )

    def __len__(self) -> int:
        return len(self.sequences)

    def arrays(self) -> list[np.ndarray]:
        """What `compute` needs on the device, int64: rows of logits, scored draws, and the bits of uniform numbers."""
        return [self.logit_rows, self.scored, self._uniform_bits()]

    def _uniform_bits(self) -> np.ndarray:
        """A sample has a stream of its own; a draw depends on seed, stream and position alone."""
        if self.sampling.temperature == 0:
            return NOTHING
        streams = [sequence.request.request_id + (sequence.index << 32) for sequence in self.sequences]
        uniform = uniform_draws(self.sampling.seed, np.array(streams, dtype=np.int64), self.positions)
        return uniform.view(np.int64)

    def compute(
        self, logits: Tensor, logit_rows: Tensor, scored: Tensor, uniform_bits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(token ids int64 [num_draws], all results as int64 bits for `drawn`), without waiting for the device.

        logits: [num_logits, vocab_size]
        """
        if len(self) == 0:
            nothing = torch.empty(0, dtype=torch.int64, device=logits.device)
            return nothing, nothing
        if len(self) != self.num_logits or self.scored.size:
            logits = logits.index_select(0, logit_rows)
        sampling = self.sampling
        uniform = uniform_bits.view(torch.float64)
        sampled = sample(logits, sampling.temperature, uniform, sampling.top_k, sampling.top_p)
        results = [sampled.token_ids, sampled.margins.double().view(torch.int64)]
        if self.scored.size:
            chosen = sampled.token_ids.index_select(0, scored).unsqueeze(1)
            scores = logits.index_select(0, scored).double().log_softmax(dim=-1).gather(1, chosen)
            results.append(scores.flatten().view(torch.int64))
        return sampled.token_ids, torch.cat(results)

    def drawn(self, results: np.ndarray) -> Drawn:
        """What `compute` found."""
        num = len(self)
        margins, scores = results[num : 2 * num].view(np.float64), results[2 * num :].view(np.float64)
        return Drawn(results[:num].tolist(), margins, scores.tolist())


def _forks(request: Request, tokens: SequenceTokens) -> list[Sequence]:
    """The samples that begin with this sequence's logits: their prompt was computed once, by it."""
    if request.num_samples == 1 or tokens.num_outputs:
        return []
    return [sequence for sequence in request.live if sequence.rank < 0]
