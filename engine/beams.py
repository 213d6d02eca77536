"""Beam search: which continuations of the beams are kept, and which beam goes on from which."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import torch
from torch import Tensor

from core.request import Request
from engine.tokens import TokenStore


class Continuation(NamedTuple):
    """One more token after the text of the beam at place `parent`; `score` is the log probability of all outputs."""

    parent: int
    token_id: int
    score: float


class BeamStep(NamedTuple):
    """By rank: the token of each beam, and for those that were dropped whom they go on from. `margin`: how much better
    the worst that was kept is than the best that was not, in nats.
    """

    tokens: dict[int, list[int]]
    parents: dict[int, int]
    margin: float


def best_continuations(logits: Tensor, scores: SequenceOf[float], width: int) -> tuple[list[Continuation], float]:
    """The `width` best of all one-token continuations, best first, and by how much they beat the next.

    logits: fp32 [num_beams, vocab_size > width]; scores: of the beams. Equals go by beam, then by token id. Sums
    are fp64. O(num_beams x vocab_size).
    """
    totals = logits.double().log_softmax(dim=-1) + torch.tensor(scores, dtype=torch.float64)[:, None].to(logits.device)
    flat = totals.flatten()
    threshold, runner_up = flat.topk(width + 1).values[-2:]
    above = torch.nonzero(flat > threshold).flatten()  # topk leaves open which of equals it takes
    equal = torch.nonzero(flat == threshold).flatten()[: width - above.numel()]
    chosen = torch.cat([above, equal]).tolist()
    best = sorted(zip(chosen, flat[chosen].tolist(), strict=True), key=lambda item: (-item[1], item[0]))
    continuations = [Continuation(*divmod(place, logits.shape[1]), score) for place, score in best]
    return continuations, (threshold - runner_up).item()


def placed(best: SequenceOf[Continuation], num_beams: int) -> list[Continuation]:
    """One continuation a place: a beam's best stays in its place, its others take those of beams that have none."""
    places: list[Continuation | None] = [None] * num_beams
    others = []
    for continuation in best:
        if places[continuation.parent] is None:
            places[continuation.parent] = continuation
        else:
            others.append(continuation)
    rest = iter(others)
    return [continuation or next(rest) for continuation in places]


class BeamSearches:
    """Advances the beam searches of a step. `num_steps` counts beams that were continued, `num_drops` those of them
    whose place another's second continuation took.
    """

    def __init__(self, tokens: TokenStore) -> None:
        self.num_steps = 0
        self.num_drops = 0
        self._tokens = tokens

    def advance(self, request: Request, logits: Tensor) -> BeamStep:
        """logits: [num_beams, vocab_size], of the beams in order of rank; of the prompt alone where they begin."""
        beams = request.live
        if self._tokens.of(beams[0]).num_outputs == 0:
            return self._begin(request, logits)
        known = [self._tokens.of(beam) for beam in beams]
        best, margin = best_continuations(logits, [tokens.score for tokens in known], len(beams))
        chosen = placed(best, len(beams))
        moved = {place: each.parent for place, each in enumerate(chosen) if each.parent != place}
        for place, parent in moved.items():
            self._tokens.fork(beams[parent], beams[place])
        self.num_steps += len(beams)
        self.num_drops += len(moved)
        return self._append(request, chosen, {beams[a].rank: beams[b].rank for a, b in moved.items()}, margin)

    def _begin(self, request: Request, logits: Tensor) -> BeamStep:
        """The best tokens after the prompt, one a beam; the beams get their blocks when the step is committed."""
        best, margin = best_continuations(logits, [0.0], len(request.live))
        return self._append(request, best, {}, margin)

    def _append(
        self, request: Request, chosen: SequenceOf[Continuation], parents: dict[int, int], margin: float
    ) -> BeamStep:
        new = {}
        for beam, continuation in zip(request.live, chosen, strict=True):
            tokens = self._tokens.of(beam)
            tokens.append(continuation.token_id)
            tokens.score = continuation.score
            if beam.rank >= 0:
                new[beam.rank] = [continuation.token_id]
        return BeamStep(new, parents, margin)
