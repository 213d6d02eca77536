"""Rotary embedding of queries and keys and the write of keys and values into the paged cache, in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_contiguous, require_float, require_index, require_shape


def rope_kv_write(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> Tensor:
    """Rotates q and k of one layer's fused projection, puts k and v into their slots; returns the rotated queries.

    Half-split RoPE (Su et al. 2021, in the order of GPT-NeoX and Llama) of token t, h = head_dim / 2:
        y[i] = x[i] cos[t, i] - x[i + h] sin[t, i];  y[i + h] = x[i + h] cos[t, i] + x[i] sin[t, i]

    qkv: [num_tokens, (num_heads + 2 num_kv_heads) head_dim], rows may be strided; cos, sin: fp32 [num_tokens,
    head_dim / 2], of each token's position; slot_mapping: int64 [num_tokens], all different, or -1 for a row of
    padding, which is not cached; caches: [num_blocks, block_size, num_kv_heads, head_dim].
    Returns [num_tokens, num_heads, head_dim]. Rotates in fp32; values are copied unchanged.

    A token moves 2 (num_heads + 2 num_kv_heads) head_dim elements (each read once and written once) and 4 head_dim
    bytes of cos and sin, for 3 (num_heads + num_kv_heads) head_dim FLOPs. One program: one token, up to 8 heads.

    Raises ValueError for other shapes, dtypes and layouts.
    """
    num_tokens, num_heads = _require_supported(qkv, cos, sin, k_cache, v_cache, slot_mapping)
    num_kv_heads, head_dim = k_cache.shape[2:]
    query = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if num_tokens:
        tile = rope_tile(num_heads, num_kv_heads, head_dim)
        grid = (num_tokens, triton.cdiv(num_heads + 2 * num_kv_heads, tile["TILE_HEADS"]))
        rope_kv_write_kernel[grid](qkv, cos, sin, k_cache, v_cache, slot_mapping, query, qkv.stride(0), **tile)
    return query


def rope_tile(num_heads: int, num_kv_heads: int, head_dim: int) -> dict[str, int]:
    """The kernel's compile-time values: a tile holds up to 8 heads (16 spill registers on sm_90 where nothing is known
    to be aligned), and half a head padded to a power of two."""
    return {
        "NUM_HEADS": num_heads,
        "NUM_KV_HEADS": num_kv_heads,
        "HALF": head_dim // 2,
        "TILE_HEADS": min(8, triton.next_power_of_2(num_heads + 2 * num_kv_heads)),
        "TILE_HALF": triton.next_power_of_2(head_dim // 2),
    }


@triton.jit
def rope_kv_write_kernel(
    qkv,
    cos,
    sin,
    k_cache,
    v_cache,
    slot_mapping,
    query,
    qkv_stride,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    TILE_HEADS: tl.constexpr,
    TILE_HALF: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)[:, None]
    column = tl.arange(0, TILE_HALF)[None, :]
    is_inside = (head < NUM_HEADS + 2 * NUM_KV_HEADS) & (column < HALF)
    is_query = head < NUM_HEADS
    is_value = head >= NUM_HEADS + NUM_KV_HEADS

    source = qkv + token * qkv_stride + head * 2 * HALF + column
    low = tl.load(source, mask=is_inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=is_inside, other=0.0).to(tl.float32)
    angle = token * HALF + column
    cosine = tl.load(cos + angle, mask=column < HALF, other=0.0)
    sine = tl.load(sin + angle, mask=column < HALF, other=0.0)
    # A value is chosen, not rotated by zero: inf * 0 would spoil it.
    new_low = tl.where(is_value, low, low * cosine - high * sine).to(query.dtype.element_ty)
    new_high = tl.where(is_value, high, high * cosine + low * sine).to(query.dtype.element_ty)

    q_target = query + (token * NUM_HEADS + head) * 2 * HALF + column
    tl.store(q_target, new_low, mask=is_inside & is_query)
    tl.store(q_target + HALF, new_high, mask=is_inside & is_query)
    slot = tl.load(slot_mapping + token + tl.arange(0, 1))[:, None]  # a block: so must masks be
    is_cached = is_inside & (slot >= 0)
    is_key = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    k_target = k_cache + (slot * NUM_KV_HEADS + head - NUM_HEADS) * 2 * HALF + column
    tl.store(k_target, new_low, mask=is_cached & is_key)
    tl.store(k_target + HALF, new_high, mask=is_cached & is_key)
    v_target = v_cache + (slot * NUM_KV_HEADS + head - NUM_HEADS - NUM_KV_HEADS) * 2 * HALF + column
    tl.store(v_target, new_low, mask=is_cached & is_value)
    tl.store(v_target + HALF, new_high, mask=is_cached & is_value)


def _require_supported(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> tuple[int, int]:
    """num_tokens and num_heads of a call the kernel computes rightly."""
    require_float("qkv", qkv)
    require(qkv.dim() == 2 and qkv.stride(1) == 1, "qkv must be [num_tokens, columns] with contiguous columns")
    require(k_cache.dim() == 4, f"k_cache is {list(k_cache.shape)}; it must have four dimensions")
    num_kv_heads, head_dim = k_cache.shape[2:]
    require(head_dim % 2 == 0, f"head_dim is {head_dim}; halves are rotated, so it must be even")
    num_heads, rest = divmod(qkv.shape[1], head_dim)
    num_heads -= 2 * num_kv_heads
    require(
        rest == 0 and num_heads > 0,
        f"qkv has {qkv.shape[1]} columns; with {num_kv_heads} KV heads of {head_dim} it must hold whole heads,"
        f" more than {2 * num_kv_heads}",
    )
    require_shape("v_cache", v_cache, tuple(k_cache.shape))
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        require(cache.dtype == qkv.dtype, f"{name} is {cache.dtype}, qkv is {qkv.dtype}; they must be the same")
        require_contiguous(name, cache)
    for name, table in (("cos", cos), ("sin", sin)):
        require(table.dtype == torch.float32, f"{name} is {table.dtype}; it must be float32")
        require_shape(name, table, (len(qkv), head_dim // 2))
        require_contiguous(name, table)
    require_index("slot_mapping", slot_mapping, len(qkv))
    return len(qkv), num_heads
