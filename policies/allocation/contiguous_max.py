"""Reservation of the longest sequence there may be (FasterTransformer; "Orca (Max)" in the PagedAttention paper)."""

from __future__ import annotations

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.request import Request
from policies.allocation.contiguous import Contiguous


class ContiguousMax(Contiguous):
    """Every sequence has `max_seq_tokens` slots until it ends, whatever becomes of it.

    FasterTransformer frees them when its whole batch ends, Orca request by request, as here.
    """

    def __init__(
        self, env: PolicyEnv, max_seq_tokens: int = 2048, placement: str = "buddy", compaction: bool = False
    ) -> None:
        super().__init__(env, placement, compaction)
        if not isinstance(max_seq_tokens, int) or max_seq_tokens < 1:
            raise InputError(f"allocation.max_seq_tokens={max_seq_tokens}: expected a whole number of at least 1")
        self._max_seq_tokens = max_seq_tokens

    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        return self._max_seq_tokens

    def why_unservable(self, request: Request) -> str:
        """A longer request outgrows its reservation."""
        if request.num_peak_tokens > self._max_seq_tokens:
            return (
                f"has {request.num_peak_tokens} tokens to keep, its reservation (allocation.max_seq_tokens) is"
                f" {self._max_seq_tokens}"
            )
        return super().why_unservable(request)
