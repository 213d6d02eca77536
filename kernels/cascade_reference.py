"""Cascade decode attention in plain torch: over a shared prefix once for all sequences, over the rest one by one."""

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Attention over some of the keys: mixes [num_seqs, num_heads, dim], log_sums = log Σ e^score [.., num_heads]."""

    mixes: Tensor
    log_sums: Tensor


def shared_run_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    num_shared_blocks: int,
    scale: float,
) -> Tensor:
    """Decode attention of one run of sequences that begin with the same blocks: that of kernels/reference.py.

    The first num_shared_blocks entries of every row of block_tables are the same, and hold tokens; a sequence that ends
    within them sees its own tokens only. The other arguments and the result are those of decode_attention.
    """
    num_shared = num_shared_blocks * k_cache.shape[1]
    shared_table, own_tables = block_tables[:1, :num_shared_blocks], block_tables[:, num_shared_blocks:]
    num_own = num_kv_tokens - num_shared
    is_own = _visible(num_own, own_tables.shape[1] * k_cache.shape[1])[:, :, None, None]
    # Unused memory may hold NaN, which no weight of 0 would remove.
    own = (_gathered(cache, own_tables).where(is_own, 0) for cache in (k_cache, v_cache))
    parts = [
        _attended(query, _gathered(k_cache, shared_table), _gathered(v_cache, shared_table), num_kv_tokens, scale),
        _attended(query, *own, num_own, scale),
    ]
    return merged(parts).to(query.dtype)


def merged(parts: list[Part]) -> Tensor:
    """The attention over the keys of all parts together: their mixes, weighed by e^log_sum."""
    weights = torch.softmax(torch.stack([part.log_sums for part in parts]), dim=0)
    return (torch.stack([part.mixes for part in parts]) * weights.unsqueeze(-1)).sum(0)


def _gathered(cache: Tensor, block_tables: Tensor) -> Tensor:
    """[rows, tokens, num_kv_heads, head_dim] of one row of tables for all, or one for each sequence."""
    return cache[block_tables].flatten(1, 2)


def _attended(query: Tensor, key: Tensor, value: Tensor, num_visible: Tensor, scale: float) -> Part:
    """Over the first num_visible [num_seqs] keys; a sequence that sees none gets zeros, and a log_sum of -inf."""
    num_kv_heads = key.shape[2]
    grouped = query.unflatten(1, (num_kv_heads, -1))
    key, value = (rows.expand(len(query), -1, -1, -1) for rows in (key, value))
    scores = torch.einsum("skgd,stkd->skgt", grouped, key).to(torch.promote_types(query.dtype, torch.float32)) * scale
    scores = scores.masked_fill(~_visible(num_visible, key.shape[1])[:, None, None, :], -torch.inf)
    log_sums = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - log_sums.clamp(min=torch.finfo(scores.dtype).min).unsqueeze(-1))
    mixes = torch.einsum("skgt,stkd->skgd", weights.to(value.dtype), value)
    return Part(mixes.flatten(1, 2), log_sums.flatten(1))


def _visible(num_visible: Tensor, num_keys: int) -> Tensor:
    """bool [num_seqs, num_keys]"""
    return torch.arange(num_keys, device=num_visible.device) < num_visible[:, None]
