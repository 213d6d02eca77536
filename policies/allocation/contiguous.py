"""Contiguous allocation: each sequence in one run of blocks, found by first fit, best fit or the buddy system."""

from __future__ import annotations

from abc import abstractmethod

from core.errors import InputError
from core.interfaces import ContiguousAllocation, PolicyEnv, Run
from core.request import Request
from policies.allocation.buddy import Buddy
from policies.allocation.free_extents import BestFit, FirstFit

_PLACEMENTS: dict[str, type[FirstFit] | type[Buddy]] = {"first_fit": FirstFit, "best_fit": BestFit, "buddy": Buddy}


class Contiguous(ContiguousAllocation):
    """What placement and books come to; subclasses say how many slots a request is given.

    `compaction`: where a run finds no hole although enough blocks are free in all, others are moved (first and best fit
    only). A run is moved whole, filled or not. Raises InputError for a placement that there is not, or that cannot
    compact, and for a pool without bounds.
    """

    def __init__(self, env: PolicyEnv, placement: str = "buddy", compaction: bool = False) -> None:
        super().__init__(env)
        if placement not in _PLACEMENTS:
            raise InputError(f"allocation.placement={placement}: expected one of {', '.join(_PLACEMENTS)}")
        if env.num_blocks is None:
            raise InputError(
                "pool.num_blocks=unbounded: contiguous allocation needs a pool that ends; expected a number"
            )
        self._holes: FirstFit | Buddy = _PLACEMENTS[placement](env.num_blocks)
        self._mover = self._holes if compaction and isinstance(self._holes, FirstFit) else None
        if compaction and self._mover is None:
            raise InputError(
                f"allocation.compaction=true: not with placement={placement}; expected false, or first_fit"
            )
        self._placed: dict[int, Run] = {}  # by start

    @abstractmethod
    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        """Slots that a sequence has once `num_tokens` of its tokens have KV: as many, at least."""

    def target_blocks(self, request: Request, num_tokens: int) -> int:
        """The reservation in whole blocks."""
        return -(-self.reserved_tokens(request, num_tokens) // self.env.block_size_tokens)

    def why_unservable(self, request: Request) -> str:
        """Whether even the empty pool has no run that is long enough."""
        num_blocks = self.target_blocks(request, request.num_peak_tokens)
        if num_blocks > self._holes.longest:
            return f"needs a run of {num_blocks} blocks, the longest that the pool can give has {self._holes.longest}"
        return ""

    def can_place(self, num_blocks: int) -> bool:
        if self._mover is not None:
            return num_blocks <= self._holes.num_free
        return self._holes.can_place(num_blocks)

    def place(self, num_blocks: int) -> Run | None:
        run = self._holes.place(num_blocks)
        if run is not None:
            self._placed[run.start] = run
        return run

    def free(self, run: Run) -> None:
        del self._placed[run.start]
        self._holes.free(run)

    def compact(self, num_blocks: int) -> list[tuple[Run, int]]:
        """Moves as few blocks as possible: see `FirstFit.compact`."""
        assert self._mover is not None, "without compaction, `can_place` promises nothing that `place` cannot keep"
        moves = self._mover.compact(num_blocks, list(self._placed.values()))
        for run, start in moves:
            del self._placed[run.start]
            self._placed[start] = run._replace(start=start)
        return moves

    def free_runs(self) -> list[Run]:
        return self._holes.free_runs
