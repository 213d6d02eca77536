"""The base of most preemption policies: a rank, a mode, and a bound on how often one request is taken."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from core.errors import InputError
from core.interfaces import PolicyEnv, Preemption, PreemptionPolicy, PreemptMode, Running, Shortage
from core.request import Request


def preempt_mode(name: str) -> PreemptMode:
    """The mode of that name. Raises InputError."""
    try:
        return PreemptMode(name)
    except ValueError:
        modes = " or ".join(mode.value for mode in PreemptMode)
        raise InputError(f"preemption.mode={name}: expected {modes}") from None


class Ranked(PreemptionPolicy):
    """Write `rank`: the greatest goes, of equals the last in running order. O(running) a preemption.

    With `max_preemptions`, a request that was preempted so often is not taken again while there is another; once all
    have been, the last in running order goes, so that the first gets done. That bounds starvation, and ends the mutual
    preemption for ever that a rank which grows with what is held may lead to. None: no bound.
    """

    def __init__(self, env: PolicyEnv, mode: str = "recompute", max_preemptions: int | None = None) -> None:
        super().__init__(env)
        if max_preemptions is not None and (not isinstance(max_preemptions, int) or max_preemptions < 1):
            raise InputError(
                f"preemption.max_preemptions={max_preemptions}: expected a whole number of at least 1, or null"
            )
        self._mode = preempt_mode(mode)
        self._max_preemptions = max_preemptions

    @abstractmethod
    def rank(self, request: Request) -> Any:
        """Anything that compares."""

    def mode(self, request: Request) -> PreemptMode:
        return self._mode

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        victim = max(self._candidates(running), key=self.rank)
        return Preemption(victim, self.mode(victim))

    def _candidates(self, running: Running) -> Iterable[Request]:
        """Last in running order first: `max` takes the first of equals."""
        if self._max_preemptions is None:
            return reversed(running)
        spared = [request for request in reversed(running) if request.num_preemptions < self._max_preemptions]
        return spared or [next(reversed(running))]


def num_kv_tokens(request: Request) -> int:
    """Tokens of all its samples that have KV."""
    return sum(sequence.num_computed for sequence in request.live)


def num_outputs(request: Request) -> int:
    """Tokens that its samples have produced."""
    return sum(sequence.num_outputs for sequence in request.live)
