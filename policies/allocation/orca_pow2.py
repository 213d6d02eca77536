"""Reservation of the prompt and the next power of two of the output ("Orca (Pow2)" in the PagedAttention paper)."""

from __future__ import annotations

from core.request import Request
from policies.allocation.contiguous import Contiguous


class OrcaPow2(Contiguous):
    """p + 2^ceil(log2 o) slots: an output of 25 tokens is given 32. Clairvoyant: it knows how long the output will be.

    By default placed by the buddy system, as in the paper's section 6.1.
    """

    clairvoyant = True

    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        return request.num_prompt_tokens + (1 << (request.num_output_tokens - 1).bit_length())
