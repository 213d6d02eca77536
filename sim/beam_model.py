"""Which beams go on from which: the simulator computes no probabilities, so this is a recording or a stated chance."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping

from core.errors import InputError
from core.plan import StepPlan
from core.request import Request


class BeamModel(ABC):
    """Says after each step which beams were dropped, and who took their places."""

    @abstractmethod
    def parents(self, plan: StepPlan) -> Mapping[int, int]:
        """By rank, as in `StepResult.parents`, for the plan's beam searches."""


class RandomBeams(BeamModel):
    """After each step every beam is dropped with the chance `drop_ratio` (if all would be, the first one stays); its
    place takes a copy of a survivor, each as likely as any other.

    This is no model of language: it is one number, which `kvtwin engine` measures (`num_beam_drops` over
    `num_beam_steps` of its summary). Draws depend on the seed, the request and its own steps alone, not on the batch.
    Raises InputError for a ratio outside [0, 1].
    """

    def __init__(self, drop_ratio: float, seed: int = 0) -> None:
        if not 0 <= drop_ratio <= 1:
            raise InputError(f"beams.drop_ratio={drop_ratio}: expected a ratio in [0, 1]")
        self._drop_ratio = drop_ratio
        self._seed = seed
        self._draws: dict[int, random.Random] = {}  # by request

    def parents(self, plan: StepPlan) -> Mapping[int, int]:
        parents: dict[int, int] = {}
        for request in plan.searches:
            parents |= self._parents_of(request)
        return parents

    def _parents_of(self, request: Request) -> dict[int, int]:
        draw = self._draws.get(request.request_id)
        if draw is None:
            draw = self._draws[request.request_id] = random.Random(f"{self._seed} {request.request_id}")
        ranks = [sequence.rank for sequence in request.live]
        stays = [draw.random() >= self._drop_ratio for _ in ranks]
        survivors = [rank for rank, is_kept in zip(ranks, stays, strict=True) if is_kept] or ranks[:1]
        return {rank: draw.choice(survivors) for rank in ranks if rank not in survivors}


class RecordedBeams(BeamModel):
    """What an engine run recorded: `parents[i]` after step i."""

    def __init__(self, parents: Mapping[int, Mapping[int, int]]) -> None:
        self._parents = parents

    def parents(self, plan: StepPlan) -> Mapping[int, int]:
        return self._parents.get(plan.step, {})


NO_DROPS = RecordedBeams({})
"""Every beam goes on from itself."""
