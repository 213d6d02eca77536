"""Reservation of exactly what a request will need ("Orca (Oracle)" in the PagedAttention paper)."""

from __future__ import annotations

from core.request import Request
from policies.allocation.contiguous import Contiguous


class OrcaOracle(Contiguous):
    """The request's KV at its end: p + o - 1 slots, for its last token never has KV. Clairvoyant.

    By default placed by the buddy system, as in the paper's section 6.1; `placement=first_fit` or `best_fit` rounds
    nothing up.
    """

    clairvoyant = True

    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        return request.num_peak_tokens
