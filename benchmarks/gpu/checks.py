"""One call of each kernel beside plain torch in fp64: the largest deviation, as a share of what is tolerated.

NaN lies wherever nothing may be read or written; copies must be the same to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.gpu.paged import paged_sequences
from engine.batch import decode_runs, run_arrays
from engine.shared_prefixes import SharedRun
from kernels import reference
from kernels.block_copy import copy_blocks, move_tokens
from kernels.cascade_attention import cascade_decode_attention
from kernels.decode_attention import decode_attention
from kernels.expert_product import expert_product
from kernels.kv_write import write_kv, write_latents
from kernels.mla_attention import mla_decode_attention, mla_prefill_attention
from kernels.prefill_attention import prefill_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_kv_write import rope_kv_write
from kernels.swap import gather_blocks, scatter_blocks
from kernels.swiglu import swiglu

TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 2e-2}  # absolute up to values of one, relative above
NUM_KV_HEADS = 2


def _share(result: Tensor, expected: Tensor, dtype: torch.dtype) -> float:
    deviation = (result.double() - expected.double()).abs() / expected.double().abs().clamp(min=1)
    return float(deviation.max()) / TOLERANCE[dtype]


def _exact(*pairs: tuple[Tensor, Tensor]) -> float:
    """0 where every bit is the same, NaN in unused memory included."""
    return 0.0 if all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs) else torch.inf


def _lengths(block_size: int) -> list[int]:
    return [1, max(1, block_size - 1), block_size, block_size + 1, 3 * block_size + 5]


def _chunk_starts(lengths: list[int], device: torch.device) -> Tensor:
    """Of the last half of each sequence."""
    return torch.tensor([0, *(-(-length // 2) for length in lengths)], device=device).cumsum(0)


def _decode(
    head_dim: int, group_size: int, dtype: torch.dtype, block_size: int, window: int | None, device: torch.device
) -> float:
    paged = paged_sequences(_lengths(block_size), block_size, NUM_KV_HEADS, head_dim, dtype, device)
    query = torch.randn(len(paged.num_kv_tokens), NUM_KV_HEADS * group_size, head_dim, device=device).to(dtype)
    scale = head_dim**-0.5
    expected = reference.decode_attention(query.double(), *paged.double(), scale, window)
    return _share(decode_attention(query, *paged, scale, window), expected, dtype)


def _prefill(
    head_dim: int, group_size: int, dtype: torch.dtype, block_size: int, window: int | None, device: torch.device
) -> float:
    lengths = _lengths(block_size)
    paged = paged_sequences(lengths, block_size, NUM_KV_HEADS, head_dim, dtype, device)
    start = _chunk_starts(lengths, device)
    query = torch.randn(int(start[-1]), NUM_KV_HEADS * group_size, head_dim, device=device).to(dtype)
    scale = head_dim**-0.5
    k_cache, v_cache, tables, num_kv = paged.double()
    expected = reference.prefill_attention(query.double(), k_cache, v_cache, tables, start, num_kv, scale, window)
    result = prefill_attention(query, paged.k_cache, paged.v_cache, tables, start, num_kv, scale, window)
    return _share(result, expected, dtype)


def _mla_decode(
    dims: tuple[int, int], num_heads: int, dtype: torch.dtype, block_size: int, device: torch.device
) -> float:
    latent_dim, rope_dim = dims
    cache, _, tables, num_kv = paged_sequences(
        _lengths(block_size), block_size, 1, latent_dim + rope_dim, dtype, device
    )
    latents = cache.squeeze(2)
    query = torch.randn(len(num_kv), num_heads, latent_dim + rope_dim, device=device).to(dtype)
    scale = (latent_dim + rope_dim) ** -0.5
    wide = query.double(), latents.double()
    expected = reference.mla_decode_attention(*wide, tables, num_kv, latent_dim, scale)
    return _share(mla_decode_attention(query, latents, tables, num_kv, latent_dim, scale), expected, dtype)


def _mla_prefill(
    dims: tuple[int, int], num_heads: int, dtype: torch.dtype, block_size: int, device: torch.device
) -> float:
    latent_dim, rope_dim = dims
    lengths = _lengths(block_size)
    cache, _, tables, num_kv = paged_sequences(lengths, block_size, 1, latent_dim + rope_dim, dtype, device)
    latents, start = cache.squeeze(2), _chunk_starts(lengths, device)
    query = torch.randn(int(start[-1]), num_heads, latent_dim + rope_dim, device=device).to(dtype)
    scale = (latent_dim + rope_dim) ** -0.5
    wide = query.double(), latents.double()
    expected = reference.mla_prefill_attention(*wide, tables, start, num_kv, latent_dim, scale)
    return _share(mla_prefill_attention(query, latents, tables, start, num_kv, latent_dim, scale), expected, dtype)


def _cascade(head_dim: int, group_size: int, dtype: torch.dtype, block_size: int, device: torch.device) -> float:
    """Two blocks are shared by all but the first; one sequence ends with them, one within."""
    num_shared, shared = 2, 2 * block_size
    lengths = [shared + length for length in _lengths(block_size)] + [shared, max(1, shared - 1)]
    paged = paged_sequences(lengths, block_size, NUM_KV_HEADS, head_dim, dtype, device)
    paged.block_tables[1:, :num_shared] = paged.block_tables[1, :num_shared]
    whole = [SharedRun(0, 1, 0), SharedRun(1, len(lengths), num_shared)]
    arrays = [torch.from_numpy(array).to(device) for array in run_arrays(whole, block_size)]
    runs = decode_runs(whole, paged.block_tables, paged.num_kv_tokens, arrays)
    query = torch.randn(len(lengths), NUM_KV_HEADS * group_size, head_dim, device=device).to(dtype)
    scale = head_dim**-0.5
    expected = reference.decode_attention(query.double(), *paged.double(), scale)
    return _share(cascade_decode_attention(query, *paged, runs, scale), expected, dtype)


def _rope(head_dim: int, group_size: int, dtype: torch.dtype, device: torch.device) -> float:
    num_tokens = 5
    qkv = torch.randn(num_tokens, NUM_KV_HEADS * (group_size + 2) * head_dim, device=device).to(dtype)
    angles = torch.rand(num_tokens, head_dim // 2, device=device) * 7
    slots = torch.randperm(2 * num_tokens, device=device)[:num_tokens]
    caches, expected_caches = (
        torch.full((2, 2, num_tokens, NUM_KV_HEADS, head_dim), torch.nan, dtype=dtype, device=device) for _ in range(2)
    )
    query = rope_kv_write(qkv, angles.cos(), angles.sin(), *caches, slots)
    expected = reference.rope_kv_write(qkv, angles.cos(), angles.sin(), *expected_caches, slots)
    found, wanted = (memory.flatten(1, 2)[:, slots] for memory in (caches, expected_caches))
    untouched = torch.equal(caches.isnan(), expected_caches.isnan())
    return max(_share(query, expected, dtype), _share(found, wanted, dtype)) if untouched else torch.inf


def _write(head_dim: int, group_size: int, dtype: torch.dtype, block_size: int, device: torch.device) -> float:
    new = torch.randn(2, 7, group_size, head_dim, device=device).to(dtype)
    caches = torch.full((2, -(-7 // block_size) + 1, block_size, group_size, head_dim), torch.nan, device=device)
    caches = caches.to(dtype)
    expected = caches.clone()
    slots = torch.randperm(caches[0].flatten(0, 1).shape[0], device=device)[:7]
    write_kv(*new, *caches, slots)
    reference.write_kv(*new, *expected, slots)
    return _exact((caches, expected))


def _write_latents(
    dims: tuple[int, int], num_heads: int, dtype: torch.dtype, block_size: int, device: torch.device
) -> float:
    """One row is padding. There are as many latents as heads, which means nothing to this kernel."""
    width = sum(dims)
    new = torch.randn(num_heads + 1, width, device=device).to(dtype)
    cache = torch.full((-(-num_heads // block_size) + 1, block_size, width), torch.nan, device=device).to(dtype)
    expected = cache.clone()
    slots = torch.randperm(cache.flatten(0, 1).shape[0], device=device)[: len(new)]
    reference.write_latents(new[1:], expected, slots[1:])
    slots[0] = -1
    write_latents(new, cache, slots)
    return _exact((cache, expected))


def _experts(width: int, dtype: torch.dtype, device: torch.device) -> float:
    """One expert has no rows, one a single one, one most."""
    x = torch.randn(9, width, device=device).to(dtype)
    weights = (torch.randn(4, width + 8, width, device=device) / width**0.5).to(dtype)
    starts = torch.tensor([0, 17, 17, 18, 90], device=device)
    rows = torch.randint(9, (90,), device=device)
    expected = reference.expert_product(x.double(), weights.double(), rows, starts)
    return _share(expert_product(x, weights, rows, starts), expected, dtype)


def _norm(width: int, dtype: torch.dtype, device: torch.device) -> float:
    x, weight = torch.randn(9, width, device=device).to(dtype), torch.rand(width, device=device).to(dtype)
    return _share(rms_norm(x, weight, 1e-5), reference.rms_norm(x.double(), weight.double(), 1e-5), dtype)


def _add_norm(width: int, dtype: torch.dtype, device: torch.device) -> float:
    x, residual = torch.randn(2, 9, width, device=device).to(dtype)
    weight = torch.rand(width, device=device).to(dtype)
    normalised, summed = add_rms_norm(x, residual, weight, 1e-5)
    expected = reference.rms_norm(summed.double(), weight.double(), 1e-5)
    return max(_share(normalised, expected, dtype), _share(summed, x.double() + residual.double(), dtype))


def _swiglu(width: int, dtype: torch.dtype, device: torch.device) -> float:
    gate_up = torch.randn(9, 2 * width, device=device).to(dtype)
    return _share(swiglu(gate_up), reference.swiglu(gate_up.double()), dtype)


def _copies(head_dim: int, group_size: int, dtype: torch.dtype, block_size: int, device: torch.device) -> float:
    pool = torch.randn(3, 9, block_size, group_size, head_dim, device=device).to(dtype)
    expected = pool.clone()
    chain, free, slots = torch.tensor([0, 1, 2]), torch.tensor([1, 2, 8]), torch.arange(block_size)
    copy_blocks(pool, chain, free)
    move_tokens(pool, 3 * block_size + slots, 5 * block_size + slots.flip(0))
    staging = gather_blocks(pool, chain)
    scatter_blocks(pool, free, staging)
    chain, free, slots = chain.to(device), free.to(device), slots.to(device)
    reference.copy_blocks(expected, chain, free)
    reference.move_tokens(expected, 3 * block_size + slots, 5 * block_size + slots.flip(0))
    reference.scatter_blocks(expected, free, reference.gather_blocks(expected, chain))
    return _exact((pool, expected))


CHECKS: Mapping[str, Callable[..., float]] = {
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "cascade_decode_attention": _cascade,
    "mla_decode_attention": _mla_decode,
    "mla_prefill_attention": _mla_prefill,
    "rope_kv_write": _rope,
    "write_kv": _write,
    "write_latents": _write_latents,
    "rms_norm": _norm,
    "add_rms_norm": _add_norm,
    "swiglu": _swiglu,
    "expert_product": _experts,
    "copies": _copies,
}
