"""The write of new keys and values, or latents, into the paged cache, for models whose rotation is done elsewhere."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_contiguous, require_index, require_shape


def write_kv(key: Tensor, value: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes one layer's new keys and values into their slots, in place: cache[slot[t]] = new[t].

    key, value: [num_tokens, num_kv_heads, head_dim], any strides between tokens, heads contiguous; caches:
    [num_blocks, block_size, num_kv_heads, head_dim]; slot_mapping: int64 [num_tokens], all different, or -1 for a row
    of padding, which is not cached.

    Moves 4 num_tokens num_kv_heads head_dim elements (k and v, each read once and written once); no FLOPs.
    One program: up to 1,024 elements of one token.

    Raises ValueError for other shapes, dtypes and layouts.
    """
    num_tokens, row = len(key), key[0].numel() if len(key) else 0
    require(key.dim() == 3 and k_cache.dim() == 4, "key must be [num_tokens, heads, dim], k_cache four-dimensional")
    require_shape("value", value, tuple(key.shape))
    require_index("slot_mapping", slot_mapping, num_tokens)
    for name, new, cache in (("k_cache", key, k_cache), ("v_cache", value, v_cache)):
        require_shape(name, cache, (*k_cache.shape[:2], *key.shape[1:]))
        require_contiguous(name, cache)
        require(cache.dtype == new.dtype, f"{name} is {cache.dtype}, what is written {new.dtype}; make them the same")
        require(num_tokens == 0 or new[0].is_contiguous(), "the heads of one token must be contiguous")
    if num_tokens:
        tile = write_tile(row)
        grid = (num_tokens, triton.cdiv(row, tile["TILE"]))
        write_kv_kernel[grid](key, value, k_cache, v_cache, slot_mapping, key.stride(0), value.stride(0), **tile)


def write_latents(latents: Tensor, cache: Tensor, slot_mapping: Tensor) -> None:
    """Writes one layer's new latents with their rotated keys (MLA) into their slots, in place: cache[slot[t]] = new[t].

    latents: [num_tokens, width], rows may be strided; cache: [num_blocks, block_size, width]; slot_mapping: as in
    write_kv.

    Moves 2 num_tokens width elements (each read once and written once); no FLOPs. One program: up to 1,024 elements of
    one token.

    Raises ValueError for other shapes, dtypes and layouts.
    """
    require(latents.dim() == 2 and cache.dim() == 3, "latents must be [num_tokens, width], cache three-dimensional")
    num_tokens, width = latents.shape
    require_index("slot_mapping", slot_mapping, num_tokens)
    require_shape("cache", cache, (*cache.shape[:2], width))
    require_contiguous("cache", cache)
    require(cache.dtype == latents.dtype, f"cache is {cache.dtype}, latents are {latents.dtype}; make them the same")
    require(latents.stride(1) == 1, "the numbers of one latent must be contiguous")
    if num_tokens:
        tile = write_tile(width)
        grid = (num_tokens, triton.cdiv(width, tile["TILE"]))
        write_latents_kernel[grid](latents, cache, slot_mapping, latents.stride(0), **tile)


def write_tile(row: int) -> dict[str, int]:
    """The kernel's compile-time values for `row` elements a token."""
    return {"ROW": row, "TILE": min(1024, triton.next_power_of_2(row))}


@triton.jit
def write_kv_kernel(
    key,
    value,
    k_cache,
    v_cache,
    slot_mapping,
    key_stride,
    value_stride,
    ROW: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    slot = tl.load(slot_mapping + token + tl.arange(0, 1))  # a block: so must masks be
    is_inside = (column < ROW) & (slot >= 0)
    target = slot * ROW + column
    tl.store(k_cache + target, tl.load(key + token * key_stride + column, mask=is_inside), mask=is_inside)
    tl.store(v_cache + target, tl.load(value + token * value_stride + column, mask=is_inside), mask=is_inside)


@triton.jit
def write_latents_kernel(latents, cache, slot_mapping, latent_stride, ROW: tl.constexpr, TILE: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    slot = tl.load(slot_mapping + token + tl.arange(0, 1))  # a block: so must masks be
    is_inside = (column < ROW) & (slot >= 0)
    values = tl.load(latents + token * latent_stride + column, mask=is_inside)
    tl.store(cache + slot * ROW + column, values, mask=is_inside)
