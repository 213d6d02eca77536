"""Page groups: virtual memory reserved, physical memory mapped in large pages (vAttention, ASPLOS'25)."""

from __future__ import annotations

from core.errors import InputError
from core.interfaces import AllocationPolicy, PolicyEnv
from core.model_shape import ModelShape
from core.request import Request

PAGE_BYTES = (65_536, 131_072, 262_144, 2_097_152)  # 2 MiB is CUDA's own; the others need vAttention's driver


class PageGroup(AllocationPolicy):
    """A sequence grows by one page of K and one of V in every layer at a time: `tokens_per_page` tokens.

    Llama-3-8B: 1,024 tokens in pages of 2 MiB, 32 in pages of 64 KiB. This is the accounting of the memory: where a
    page lies does not matter, since the addresses that kernels see are contiguous. A freed page serves whoever grows
    next; that vAttention keeps it mapped until then saves time, not memory, and is not priced.
    """

    shares_blocks = False

    def __init__(self, env: PolicyEnv, model: ModelShape, page_bytes: int = 2_097_152) -> None:
        super().__init__(env)
        if page_bytes not in PAGE_BYTES:
            raise InputError(f"allocation.page_bytes={page_bytes}: expected one of {', '.join(map(str, PAGE_BYTES))}")
        self.num_pages_per_growth = model.num_kv_layers * (1 if model.latent_dim else 2)
        self.tokens_per_page = page_bytes * self.num_pages_per_growth // model.kv_bytes_per_token()
        if self.tokens_per_page < 1:
            raise InputError(f"allocation.page_bytes={page_bytes}: one token of {model.name} does not fit into a page")

    def target_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks that the mapped pages come to, rounded up to whole ones."""
        num_mapped_tokens = -(-num_tokens // self.tokens_per_page) * self.tokens_per_page
        return -(-num_mapped_tokens // self.env.block_size_tokens)
