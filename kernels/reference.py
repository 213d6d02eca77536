"""Paged attention, KV write, norms, gates and copies in plain torch: what every faster kernel must equal.

Shapes and signatures here are the contract for the Triton kernels beside this file. A *slot* is
`block_id * block_size + offset`; a position is found through the block table, never derived from a slot.
Padding is never read: a masked column re-reads a visible token, so NaN in unused memory cannot leak.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention

from kernels.cascade_reference import shared_run_attention
from kernels.shared_runs import DecodeRuns, decode_by_runs


def write_kv(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write one layer's new keys and values into their slots, in place.

    key, value: [num_tokens, num_kv_heads, head_dim]; caches: [num_blocks, block_size, num_kv_heads, head_dim];
    slot_mapping: int64 [num_tokens], all different.
    """
    k_cache.flatten(0, 1).index_copy_(0, slot_mapping, key)
    v_cache.flatten(0, 1).index_copy_(0, slot_mapping, value)


def write_latents(latents: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Write one layer's new latents with their rotated keys (MLA) into their slots, in place.

    latents: [num_tokens, width]; cache: [num_blocks, block_size, width]; slot_mapping: int64 [num_tokens], all
    different.
    """
    cache.flatten(0, 1).index_copy_(0, slot_mapping, latents)


def rope_kv_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Rotate q and k of one layer's fused projection, write k and v into their slots; returns the rotated queries.

    qkv: [num_tokens, (num_heads + 2 num_kv_heads) head_dim]; cos, sin: fp32 [num_tokens, head_dim / 2], of each
    token's position; slot_mapping: int64 [num_tokens], all different; caches: [num_blocks, block_size, num_kv_heads,
    head_dim]. Half-split RoPE, dimension i pairs with i + head_dim / 2. Returns [num_tokens, num_heads, head_dim].
    """
    num_kv_heads, head_dim = k_cache.shape[2:]
    heads = qkv.unflatten(1, (-1, head_dim))
    num_rotated = heads.shape[1] - num_kv_heads
    rotated = rotate(heads[:, :num_rotated], cos, sin)
    query, key = rotated.tensor_split((num_rotated - num_kv_heads,), dim=1)
    write_kv(key, heads[:, num_rotated:], k_cache, v_cache, slot_mapping)
    return query


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split RoPE of [num_tokens, num_heads, rotated_dim] by angles [num_tokens, rotated_dim / 2], at least fp32.

    Dimension i pairs with i + rotated_dim / 2.
    """
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    wide = _widened(heads)
    low, high = wide.chunk(2, dim=-1)
    rotated = (wide.unflatten(-1, (2, -1)) * cos.unsqueeze(-2)).flatten(-2)
    rotated_low, rotated_high = rotated.chunk(2, dim=-1)  # views: each half gets the other's part in place
    rotated_low.addcmul_(high, sin, value=-1)
    rotated_high.addcmul_(low, sin)
    return rotated.to(heads.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x weight / sqrt(mean(x^2) + eps) over the last dimension (arXiv 1910.07467), at least fp32 inside.

    x: [..., width]; weight: [width]. For GPUs torch has a kernel; on the CPU it has a chain of nine, of which these are
    six.
    """
    if x.is_cuda:
        return functional.rms_norm(x, weight.shape, weight, eps)
    wide = _widened(x)
    scale = torch.linalg.vecdot(wide, wide).div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * scale.unsqueeze(-1)).mul_(weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) for s = x + residual."""
    summed = x + residual
    return rms_norm(summed, weight, eps), summed


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up; gate_up: [num_tokens, 2 width], gate first."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)


def expert_product(x: Tensor, weights: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """Row i of the result is weights[e] x[rows[i]], where starts[e] <= i < starts[e + 1].

    x: [num_tokens, in]; weights: [num_experts, out, in]; rows: int64 [num_pairs]; starts: int64 [num_experts + 1], from
    0 to num_pairs. Returns [num_pairs, out].
    """
    product = x.new_empty(len(rows), weights.shape[1])
    ends = starts.tolist()
    for expert, weight in enumerate(weights):
        own = slice(ends[expert], ends[expert + 1])
        product[own] = functional.linear(x[rows[own]], weight)
    return product


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def decode_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Attention of one query per sequence, the newest token, over its cached tokens (itself included).

    query: [num_seqs, num_heads, head_dim]; caches: [num_blocks, block_size, num_kv_heads, head_dim];
    block_tables: int64 [num_seqs, max_blocks], any padding; num_kv_tokens: int64 [num_seqs], each >= 1;
    where KV heads have kept different tokens, [num_seqs, num_kv_heads, max_blocks] and [num_seqs, num_kv_heads];
    window: the query sees the last `window` tokens only, itself included.
    Returns [num_seqs, num_heads, head_dim].
    """
    if num_kv_tokens.dim() == 2:
        return _head_by_head(
            lambda *own: decode_attention(*own, scale, window), query, k_cache, v_cache, block_tables, num_kv_tokens
        )
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    num_columns = block_tables.shape[1] * block_size
    if window is not None:
        num_columns = min(num_columns, window)
    first = (num_kv_tokens - num_columns).clamp(min=0)
    positions = first[:, None] + torch.arange(num_columns, device=query.device)
    end = num_kv_tokens[:, None]
    readable = positions.minimum(end - 1)
    slots = block_tables.gather(1, readable // block_size) * block_size + readable % block_size

    # The query heads of one KV head are rows of one small matrix: no repeated keys.
    grouped_query = query.reshape(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mixed = scaled_dot_product_attention(
        grouped_query,
        _read_slots(k_cache, slots).transpose(1, 2),
        _read_slots(v_cache, slots).transpose(1, 2),
        attn_mask=(positions < end)[:, None, None, :],
        scale=scale,
    )
    return mixed.reshape(num_seqs, num_heads, head_dim)


def cascade_decode_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    runs: DecodeRuns,
    scale: float,
) -> Tensor:
    """`decode_attention` of the same arguments, without a window; what a run shares is read once for all its rows."""
    return decode_by_runs(shared_run_attention, decode_attention, query, k_cache, v_cache, runs, scale)


def prefill_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    num_kv_tokens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Causal attention of chunks of queries over their cached prefix and themselves (already written).

    query: [num_tokens, num_heads, head_dim], the chunks back to back; chunk s is rows
    query_start[s]:query_start[s + 1] (int64 [num_seqs + 1]); its i-th query has the position
    num_kv_tokens[s] - num_queries + i. Caches, block_tables, num_kv_tokens, window: as in decode_attention.
    Returns [num_tokens, num_heads, head_dim].
    """
    if num_kv_tokens.dim() == 2:

        def attend(query: Tensor, key: Tensor, value: Tensor, tables: Tensor, lengths: Tensor) -> Tensor:
            return prefill_attention(query, key, value, tables, query_start, lengths, scale, window)

        return _head_by_head(attend, query, k_cache, v_cache, block_tables, num_kv_tokens)
    num_kv_heads = k_cache.shape[2]
    starts = query_start.tolist()
    mixed = torch.empty_like(query)
    for seq, num_kv in enumerate(num_kv_tokens.tolist()):
        rows = slice(starts[seq], starts[seq + 1])
        chunk = query[rows].unflatten(1, (num_kv_heads, -1)).permute(1, 2, 0, 3)
        slots, visible = _chunk_view(block_tables[seq], k_cache.shape[1], chunk.shape[2], num_kv, window)
        key, value = (
            _read_slots(cache, slots).transpose(0, 1).unsqueeze(1).expand(-1, chunk.shape[1], -1, -1)
            for cache in (k_cache, v_cache)
        )
        attended = scaled_dot_product_attention(chunk, key, value, attn_mask=visible, scale=scale)
        mixed[rows] = attended.permute(2, 0, 1, 3).flatten(1, 2)
    return mixed


def mla_decode_attention(
    query: Tensor,
    latent_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    latent_dim: int,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Latent attention (MLA, absorbed) of one query per sequence: all heads over one cached vector a token.

    query: [num_seqs, num_heads, latent_dim + rope_dim], its first part already multiplied by the keys' up-projection;
    latent_cache: [num_blocks, block_size, latent_dim + rope_dim]; the rest as in decode_attention.
    Returns the mixed latents [num_seqs, num_heads, latent_dim], which the values' up-projection is still to follow.
    """
    cache = latent_cache.unsqueeze(2)
    return decode_attention(query, cache, cache, block_tables, num_kv_tokens, scale, window)[..., :latent_dim]


def mla_prefill_attention(
    query: Tensor,
    latent_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    num_kv_tokens: Tensor,
    latent_dim: int,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Latent attention of chunks of queries, as in prefill_attention: [num_tokens, num_heads, latent_dim]."""
    cache = latent_cache.unsqueeze(2)
    mixed = prefill_attention(query, cache, cache, block_tables, query_start, num_kv_tokens, scale, window)
    return mixed[..., :latent_dim]


def _head_by_head(
    attend: Callable[..., Tensor],
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
) -> Tensor:
    """Each KV head with its own queries, tables and lengths."""
    own = enumerate(query.chunk(k_cache.shape[2], dim=1))
    return torch.cat(
        [
            attend(part, k_cache[:, :, [head]], v_cache[:, :, [head]], block_tables[:, head], num_kv_tokens[:, head])
            for head, part in own
        ],
        dim=1,
    )


def _chunk_view(
    block_table: Tensor, block_size: int, num_queries: int, num_kv: int, window: int | None
) -> tuple[Tensor, Tensor]:
    """Slots [num_keys] that a chunk can see, and which query sees which key: bool [num_queries, num_keys]."""
    device = block_table.device
    query_positions = torch.arange(num_kv - num_queries, num_kv, device=device)[:, None]
    first = 0 if window is None else max(0, num_kv - num_queries - window + 1)
    key_positions = torch.arange(first, num_kv, device=device)
    slots = block_table[key_positions // block_size] * block_size + key_positions % block_size
    visible = key_positions <= query_positions
    if window is not None:
        visible &= key_positions > query_positions - window
    return slots, visible


def _read_slots(cache: Tensor, slots: Tensor) -> Tensor:
    """[*slots.shape, num_kv_heads, head_dim] of one layer's cache."""
    rows = cache.flatten(0, 1).flatten(1)
    return rows.index_select(0, slots.flatten()).view(*slots.shape, *cache.shape[2:])


def copy_blocks(cache: Tensor, source_blocks: Tensor, target_blocks: Tensor) -> None:
    """Copy whole blocks inside a pool [num_layers, num_blocks, ...], in place; all sources are read first.

    source_blocks, target_blocks: int64 [num_copies], on the host or the pool's device; targets all different.
    """
    scatter_blocks(cache, target_blocks, gather_blocks(cache, source_blocks))


def move_tokens(cache: Tensor, source_slots: Tensor, target_slots: Tensor) -> None:
    """Copy single tokens of every layer to other slots of a pool [num_layers, num_blocks, block_size, ...], in place.

    Slots: int64 [num_moves], targets all different; all sources are read first.
    """
    tokens = cache.flatten(1, 2)
    scatter_blocks(tokens, target_slots, gather_blocks(tokens, source_slots))


def gather_blocks(cache: Tensor, blocks: Tensor) -> Tensor:
    """A copy [num_layers, num_gathered, ...] of blocks int64 [num_gathered] of a pool [num_layers, num_blocks, ...]."""
    return cache.index_select(1, blocks.to(cache.device))


def scatter_blocks(cache: Tensor, blocks: Tensor, contents: Tensor) -> None:
    """Put contents [num_layers, num_scattered, ...] into the blocks int64 [num_scattered] of a pool, in place."""
    cache.index_copy_(1, blocks.to(cache.device), contents)
