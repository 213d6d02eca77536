"""Paged allocation: blocks on demand (PagedAttention, SOSP'23)."""

from __future__ import annotations

from core.interfaces import AllocationPolicy
from core.request import Request


class Paged(AllocationPolicy):
    """Just enough blocks for the tokens that have KV: waste is below one block a sequence and group."""

    is_on_demand = True

    def target_blocks(self, request: Request, num_tokens: int) -> int:
        return -(-num_tokens // self.env.block_size_tokens)
