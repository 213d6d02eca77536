"""Paged sequences to attend to: shuffled block tables, NaN wherever no token lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Paged(NamedTuple):
    """One layer's caches [num_blocks, block_size, num_kv_heads, head_dim], tables and lengths, as kernels take them."""

    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    num_kv_tokens: Tensor

    def double(self) -> Paged:
        return self._replace(k_cache=self.k_cache.double(), v_cache=self.v_cache.double())


def paged_sequences(
    lengths: Sequence[int],
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Paged:
    """Random keys and values; padding of the tables leads to blocks of NaN."""
    num_blocks = [-(-length // block_size) for length in lengths]
    order = torch.randperm(sum(num_blocks) + 1, device=device)
    tables = order[-1].repeat(len(lengths), max(num_blocks))
    caches = torch.full((2, len(order), block_size, num_kv_heads, head_dim), torch.nan, dtype=dtype, device=device)
    for row, (length, blocks) in enumerate(zip(lengths, order[:-1].split(num_blocks), strict=True)):
        tables[row, : len(blocks)] = blocks
        positions = torch.arange(length, device=device)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        caches.flatten(1, 2)[:, slots] = torch.randn(2, length, num_kv_heads, head_dim, device=device).to(dtype)
    return Paged(*caches, tables, torch.tensor(lengths, device=device))
