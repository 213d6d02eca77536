"""Paged latent attention (MLA) in Triton, absorbed: all heads read one latent per token, as keys and as values.

DeepSeek-V2 (arXiv 2405.04434), section 2.1. A cached token is a latent of latent_dim values c and a rotated key of
rope_dim values k shared by all heads; a query is (q_c, q_k), q_c having gone through the keys' up-projection already.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_checks import check_latent_attention, check_one_row_each, check_query_start
from kernels.attention_tile import (
    LOG2_E,
    NO_WINDOW,
    fold_scores,
    fresh_state,
    load_rows,
    locate_slots,
    normalised,
    seen_by_chunk,
    split_range,
    store_log_sum,
    store_rows,
    tile_width,
)
from kernels.chunk_tiles import chunk_rows, locate_chunk_tile, max_row_tiles
from kernels.interpreter import INTERPRETED
from kernels.launch import LaunchConfig, is_aligned
from kernels.splits import SplitPlan, merge_splits, new_split_buffers, num_processors, plan_splits

MAX_DECODE_ROWS, MAX_PREFILL_ROWS = 32, 16  # of a tile; more spill registers


def mla_config(
    latent_dim: int,
    rope_dim: int,
    num_heads: int,
    block_size: int,
    element_bytes: int = 2,
    aligned: bool = True,
    max_tile_rows: int = MAX_DECODE_ROWS,
) -> LaunchConfig:
    """Tiles of both kernels: rows are heads (of one query after the other). Why some are small: see `decode_config`."""
    smallest = element_bytes > 2 or not aligned
    tile_rows = 16 if smallest else min(tile_width(num_heads), max_tile_rows)
    constexprs = {
        "NUM_HEADS": num_heads,
        "BLOCK_SIZE": block_size,
        "LATENT_DIM": latent_dim,
        "ROPE_DIM": rope_dim,
        "TILE_LATENT": tile_width(latent_dim),
        "TILE_ROPE": tile_width(rope_dim),
        "TILE_ROWS": tile_rows,
        "TILE_KEYS": 16 if smallest or tile_rows > 16 else 32,
        "WIDEN": INTERPRETED,
    }
    return LaunchConfig(constexprs, num_warps=4, num_stages=2)


def mla_decode_attention(
    query: Tensor,
    latent_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    latent_dim: int,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """`kernels.reference.mla_decode_attention`, shapes as there: softmax(scale · (q_c Cᵀ + q_k Kᵀ)) C.

    Split over the context and merged as in `kernels.decode_attention`, and as careful there with what is not visible.

    n visible tokens, H heads, latent_dim r, rope_dim d, b bytes an element, per sequence: bytes moved n (r + d) b, once
    for every 32 heads (from the L2 cache after the first), + 8 H (r + 1) per split; FLOPs 2 n H (2 r + d). So FLOPs per
    byte are about 2 · 2 H / b: with 128 heads a GPU is near its ridge.

    Raises ValueError for shapes, dtypes or strides it cannot serve.
    """
    check_latent_attention(query, latent_cache, block_tables, num_kv_tokens, latent_dim, window)
    check_one_row_each(query, num_kv_tokens)
    max_tokens = block_tables.shape[1] * latent_cache.shape[1]
    splits = plan_splits(min(max_tokens, window or max_tokens), len(query), num_processors(query.device))
    return mla_decode_attention_in_splits(
        query, latent_cache, block_tables, num_kv_tokens, latent_dim, scale, window, splits
    )


def mla_decode_attention_in_splits(
    query: Tensor,
    latent_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    latent_dim: int,
    scale: float,
    window: int | None,
    splits: SplitPlan,
) -> Tensor:
    """`mla_decode_attention` of checked arguments by a given plan, which must reach the end of every sequence."""
    num_seqs, num_heads, _ = query.shape
    config = _config(query, latent_cache, latent_dim, MAX_DECODE_ROWS)
    buffers = new_split_buffers(splits.num_splits, query, latent_dim)
    if num_seqs:
        num_row_tiles = triton.cdiv(num_heads, config.constexprs["TILE_ROWS"])
        mla_decode_split_kernel[(num_seqs, num_row_tiles, splits.num_splits)](
            buffers.mixes,
            buffers.log_sums,
            query,
            latent_cache,
            block_tables,
            num_kv_tokens,
            *query.stride()[:2],
            *latent_cache.stride()[:2],
            block_tables.stride(0),
            NO_WINDOW if window is None else window,
            splits.split_tokens,
            scale * LOG2_E,
            **config.constexprs,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
        )
    return merge_splits(buffers, query.dtype)


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
    """`kernels.reference.mla_prefill_attention`, shapes as there: causal chunks over cached prefix and chunk.

    With p pairs of a query and a token it sees, H heads, latent_dim r, rope_dim d: FLOPs 2 p H (2 r + d), about
    (2 r + d) / (2 D) times those over keys and values of D that would be decompressed first; nothing is decompressed.
    Bytes moved: queries and results, and the latents again for each tile of 16 rows, mostly from the L2 cache.

    Raises ValueError for shapes, dtypes or strides it cannot serve.
    """
    check_latent_attention(query, latent_cache, block_tables, num_kv_tokens, latent_dim, window)
    check_query_start(query_start, num_kv_tokens)
    num_tokens, num_heads, _ = query.shape
    num_seqs = len(num_kv_tokens)
    mixed = torch.empty((num_tokens, num_heads, latent_dim), dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return mixed
    config = _config(query, latent_cache, latent_dim, MAX_PREFILL_ROWS)
    num_tiles = max_row_tiles(num_tokens, num_seqs, num_heads, config.constexprs["TILE_ROWS"])
    mla_prefill_kernel[(num_tiles,)](
        mixed,
        query,
        latent_cache,
        block_tables,
        query_start,
        num_kv_tokens,
        *query.stride()[:2],
        *latent_cache.stride()[:2],
        block_tables.stride(0),
        num_seqs,
        NO_WINDOW if window is None else window,
        scale * LOG2_E,
        **config.constexprs,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return mixed


def _config(query: Tensor, latent_cache: Tensor, latent_dim: int, max_tile_rows: int) -> LaunchConfig:
    num_heads, width = query.shape[1:]
    aligned = is_aligned(query, latent_cache) and latent_dim % 16 == 0
    block_size, element_bytes = latent_cache.shape[1], query.element_size()
    return mla_config(latent_dim, width - latent_dim, num_heads, block_size, element_bytes, aligned, max_tile_rows)


@triton.jit
def attend_latents(
    acc,
    row_max,
    row_sum,
    query,
    turned_query,
    latent_ptr,
    table,
    positions,
    readable,
    visible,
    latent_block_stride,
    latent_slot_stride,
    log2_scale,
    BLOCK_SIZE: tl.constexpr,
    LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    TILE_LATENT: tl.constexpr,
    TILE_ROPE: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Folds the tokens at `positions` into the rows' states: as `attend_keys`, each latent being loaded once."""
    block_ids, offsets = locate_slots(table, positions, readable, BLOCK_SIZE)
    slots = block_ids * latent_block_stride + offsets * latent_slot_stride
    latents = load_rows(latent_ptr, slots, readable, LATENT_DIM, TILE_LATENT, WIDEN)
    turned = load_rows(latent_ptr + LATENT_DIM, slots, readable, ROPE_DIM, TILE_ROPE, WIDEN)
    scores = tl.dot(query, tl.trans(latents), input_precision="ieee")
    scores = tl.dot(turned_query, tl.trans(turned), scores, input_precision="ieee") * log2_scale
    return fold_scores(acc, row_max, row_sum, tl.where(visible, scores, float("-inf")), latents)


@triton.jit
def mla_decode_split_kernel(
    mixes_ptr,
    log_sums_ptr,
    query_ptr,
    latent_ptr,
    tables_ptr,
    num_kv_tokens_ptr,
    query_row_stride,
    query_head_stride,
    latent_block_stride,
    latent_slot_stride,
    table_stride,
    window,
    split_tokens,
    log2_scale,
    NUM_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    TILE_LATENT: tl.constexpr,
    TILE_ROPE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (sequence, tile of heads, split)."""
    seq, split = tl.program_id(0), tl.program_id(2)
    head = tl.program_id(1) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    is_head = head < NUM_HEADS
    out_rows = (split * tl.num_programs(0) + seq).to(tl.int64) * NUM_HEADS + head

    num_kv_tokens = tl.load(num_kv_tokens_ptr + seq).to(tl.int32)
    first, end = split_range(num_kv_tokens, window, 0, split, split_tokens)
    acc, row_max, row_sum = fresh_state(TILE_ROWS, TILE_LATENT)
    if (first >= end) & (split > 0):
        store_log_sum(log_sums_ptr, out_rows, is_head, row_max, row_sum)
        return

    query_rows = seq.to(tl.int64) * query_row_stride + head * query_head_stride
    query = load_rows(query_ptr, query_rows, is_head, LATENT_DIM, TILE_LATENT, WIDEN)
    turned_query = load_rows(query_ptr + LATENT_DIM, query_rows, is_head, ROPE_DIM, TILE_ROPE, WIDEN)
    table = tables_ptr + seq.to(tl.int64) * table_stride
    for tile_start in range(first, end, TILE_KEYS):
        positions = tile_start + tl.arange(0, TILE_KEYS)
        readable = positions < end
        acc, row_max, row_sum = attend_latents(
            acc,
            row_max,
            row_sum,
            query,
            turned_query,
            latent_ptr,
            table,
            positions,
            readable,
            readable[None, :],
            latent_block_stride,
            latent_slot_stride,
            log2_scale,
            BLOCK_SIZE,
            LATENT_DIM,
            ROPE_DIM,
            TILE_LATENT,
            TILE_ROPE,
            WIDEN,
        )
    store_log_sum(log_sums_ptr, out_rows, is_head, row_max, row_sum)
    store_rows(mixes_ptr, out_rows, is_head, normalised(acc, row_sum), LATENT_DIM, TILE_LATENT)


@triton.jit
def mla_prefill_kernel(
    mixed_ptr,
    query_ptr,
    latent_ptr,
    tables_ptr,
    query_start_ptr,
    num_kv_tokens_ptr,
    query_row_stride,
    query_head_stride,
    latent_block_stride,
    latent_slot_stride,
    table_stride,
    num_seqs,
    window,
    log2_scale,
    NUM_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    LATENT_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    TILE_LATENT: tl.constexpr,
    TILE_ROPE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program: one tile of the (query, head) rows of one sequence, query by query."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # late queries see most: begin with them
    seq, chunk_start, num_cached, first_row, num_rows = locate_chunk_tile(
        tile, query_start_ptr, num_kv_tokens_ptr, 1, num_seqs, NUM_HEADS, TILE_ROWS
    )
    if first_row >= num_rows:
        return

    in_chunk, token, head, position, first_position, last_position = chunk_rows(
        chunk_start, num_cached, first_row, num_rows, NUM_HEADS, TILE_ROWS
    )
    query_rows = token * query_row_stride + head * query_head_stride
    query = load_rows(query_ptr, query_rows, in_chunk, LATENT_DIM, TILE_LATENT, WIDEN)
    turned_query = load_rows(query_ptr + LATENT_DIM, query_rows, in_chunk, ROPE_DIM, TILE_ROPE, WIDEN)
    table = tables_ptr + seq.to(tl.int64) * table_stride
    acc, row_max, row_sum = fresh_state(TILE_ROWS, TILE_LATENT)
    for tile_start in range(tl.maximum(first_position - window + 1, 0), last_position + 1, TILE_KEYS):
        positions = tile_start + tl.arange(0, TILE_KEYS)
        seen = seen_by_chunk(positions, position, window)
        acc, row_max, row_sum = attend_latents(
            acc,
            row_max,
            row_sum,
            query,
            turned_query,
            latent_ptr,
            table,
            positions,
            positions <= last_position,
            seen,
            latent_block_stride,
            latent_slot_stride,
            log2_scale,
            BLOCK_SIZE,
            LATENT_DIM,
            ROPE_DIM,
            TILE_LATENT,
            TILE_ROPE,
            WIDEN,
        )
    store_rows(mixed_ptr, token * NUM_HEADS + head, in_chunk, normalised(acc, row_sum), LATENT_DIM, TILE_LATENT)
