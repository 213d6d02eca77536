"""Sequences in a paged cache for the tests of kernels: blocks shuffled, everything that no sequence owns is NaN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""Of values in (-1, 1). The interpreter truncates stores of bf16: up to a whole unit in the last place, 2^-8."""

CONTEXTS = {  # tokens, by block size: the lengths around a block's edge
    "1": lambda block_size: 1,
    "B - 1": lambda block_size: max(1, block_size - 1),
    "B": lambda block_size: block_size,
    "B + 1": lambda block_size: block_size + 1,
    "3 B + 5": lambda block_size: 3 * block_size + 5,
}


class PagedBatch:
    """Caches [num_blocks, block_size, *row] that hold `num_kv_tokens` of each sequence, and the tables to them."""

    def __init__(
        self,
        num_kv_tokens: Sequence[int],
        block_size: int,
        row: tuple[int, ...],
        dtype: torch.dtype,
        num_caches: int = 2,
        num_shared_blocks: int = 0,
    ) -> None:
        self.generator = torch.Generator().manual_seed(sum(num_kv_tokens) * 1000 + block_size)
        self.dtype = dtype
        self.num_kv_tokens = torch.tensor(num_kv_tokens)
        num_blocks = [-(-num // block_size) for num in num_kv_tokens]
        order = torch.randperm(sum(num_blocks) + 3, generator=self.generator)
        self.block_tables = order[-1:].expand(len(num_blocks), max(num_blocks) + 1).clone()  # padding: a block of NaN
        for seq, (table, num) in enumerate(zip(order.split([*num_blocks, 3]), num_blocks, strict=False)):
            self.block_tables[seq, :num] = table
        self.block_tables[:, :num_shared_blocks] = self.block_tables[0, :num_shared_blocks].clone()
        shape = (num_caches, len(order), block_size, *row)
        contents = self.uniform(*shape).flatten(3) if row else self.uniform(*shape)
        self.caches = torch.full(shape, torch.nan, dtype=dtype)
        for seq, num in enumerate(num_kv_tokens):
            positions = torch.arange(num)
            blocks, offsets = self.block_tables[seq, positions // block_size], positions % block_size
            self.caches[:, blocks, offsets] = contents.view(shape)[:, blocks, offsets]

    def uniform(self, *shape: int) -> Tensor:
        """Values in (-1, 1), in the batch's dtype."""
        return (torch.rand(*shape, generator=self.generator) * 2 - 1).to(self.dtype)

    def by_heads(self, num_kv_heads: int) -> tuple[Tensor, Tensor]:
        """Tables and lengths of half as many sequences, say, whose two KV heads are taken for sequences here."""
        return self.block_tables.unflatten(0, (-1, num_kv_heads)), self.num_kv_tokens.view(-1, num_kv_heads)

    def forget_before(self, first_visible: Sequence[int]) -> None:
        """Gives back the blocks that lie wholly before each sequence's position: their entries lead to NaN."""
        for seq, position in enumerate(first_visible):
            self.block_tables[seq, : max(0, position) // self.caches.shape[2]] = self.block_tables[seq, -1]


@contextmanager
def uninitialised_memory_is_nan() -> Iterator[None]:
    """New tensors of `torch.empty` hold NaN, so that what a kernel fails to write shows."""
    torch.set_deterministic_debug_mode("warn")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")
