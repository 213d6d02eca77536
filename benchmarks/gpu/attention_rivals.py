"""The same attention by others: torch's SDPA and FlexAttention on dense tensors, FlashInfer on the paged ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.paged import Paged

Rival = tuple[str, Callable[[], Any]]
WORKSPACE_BYTES = 256 * 2**20


def decode_rivals(paged: Paged, query: Tensor, length: int, with_flex: bool) -> Iterator[Rival]:
    """Of queries [num_seqs, num_heads, head_dim]; the dense tensors are made beforehand, not timed.

    FlexAttention is compiled, which takes long.
    """
    key, value = dense(paged, length)
    one_query = query.unsqueeze(2)
    yield "SDPA", lambda: scaled_dot_product_attention(one_query, key, value, enable_gqa=True)
    if with_flex:
        flex = compiled_flex()
        yield "FlexAttention", lambda: flex(one_query, key, value, enable_gqa=True)
    if query.is_cuda and find_spec("flashinfer") is not None:
        yield "FlashInfer", flashinfer_decode(paged, query, length)


def prefill_rivals(paged: Paged, query: Tensor, with_flex: bool) -> Iterator[Rival]:
    """Of one prompt [num_tokens, num_heads, head_dim]."""
    key, value = dense(paged, len(query))
    rows = query.transpose(0, 1).unsqueeze(0)
    yield "SDPA", lambda: scaled_dot_product_attention(rows, key, value, is_causal=True, enable_gqa=True)
    if with_flex:
        from torch.nn.attention.flex_attention import create_block_mask

        flex = compiled_flex()
        mask = create_block_mask(_is_causal, None, None, len(query), len(query), device=query.device)
        yield "FlexAttention", lambda: flex(rows, key, value, block_mask=mask, enable_gqa=True)


def dense(paged: Paged, length: int) -> list[Tensor]:
    """Keys and values [num_seqs, num_kv_heads, length, head_dim]."""
    return [
        cache[paged.block_tables].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()
        for cache in (paged.k_cache, paged.v_cache)
    ]


def compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def flashinfer_decode(paged: Paged, query: Tensor, length: int) -> Callable[[], Any]:
    """FlashInfer's wrapper, planned for this batch."""
    import flashinfer

    block_size, num_kv_heads, head_dim = paged.k_cache.shape[1:]
    num_seqs, num_blocks = paged.block_tables.shape
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=query.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        torch.arange(0, num_seqs * num_blocks + 1, num_blocks, dtype=torch.int32, device=query.device),
        paged.block_tables.flatten().int(),
        torch.full((num_seqs,), (length - 1) % block_size + 1, dtype=torch.int32, device=query.device),
        query.shape[1],
        num_kv_heads,
        head_dim,
        block_size,
        q_data_type=query.dtype,
        kv_data_type=paged.k_cache.dtype,
    )
    return lambda: wrapper.run(query, (paged.k_cache, paged.v_cache))


def _is_causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return query >= key
