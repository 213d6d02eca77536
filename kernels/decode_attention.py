"""Paged decode attention in Triton: one query per sequence, its context split over the device, merged after."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_checks import check_one_row_each, check_paged_attention
from kernels.attention_tile import (
    LOG2_E,
    NO_WINDOW,
    attend_keys,
    fresh_state,
    load_rows,
    normalised,
    split_range,
    store_log_sum,
    store_rows,
    tile_width,
)
from kernels.interpreter import INTERPRETED
from kernels.launch import HeadStrides, LaunchConfig, is_aligned
from kernels.splits import SplitBuffers, SplitPlan, merge_splits, new_split_buffers, num_processors, plan_splits


def decode_config(
    head_dim: int,
    group_size: int,
    block_size: int,
    element_bytes: int = 2,
    aligned: bool = True,
    skips: bool = False,
) -> LaunchConfig:
    """Tiles of `decode_split_kernel`: query heads of one KV head as rows, and up to 16 KiB of keys.

    skips: the first tokens of some sequences are left out.

    Elements of 4 bytes are multiplied without tensor cores, and unaligned ones take a register for each address: both
    get the smallest tile, or registers spill.
    """
    tile_dim = tile_width(head_dim)
    smallest = element_bytes > 2 or not aligned
    constexprs = {
        "GROUP_SIZE": group_size,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "TILE_DIM": tile_dim,
        "TILE_ROWS": 16 if smallest else min(tile_width(group_size), 64, 8192 // tile_dim),
        "TILE_KEYS": 16 if smallest else min(64, 8192 // tile_dim),
        "SKIPS": skips,
        "WIDEN": INTERPRETED,
    }
    return LaunchConfig(constexprs, num_warps=8 if tile_dim > 128 else 4, num_stages=3)


def decode_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """`kernels.reference.decode_attention`, shapes as there: softmax(scale · q Kᵀ) V over what a sequence sees.

    Tables and lengths, of sequences or of each sequence's KV heads, may be int32 too. A sequence of 0 tokens (padding
    of a CUDA graph) gets zeros. Slots outside a sequence's visible tokens are not read, nor are the table entries that
    lead there only.

    n visible tokens, H query heads on H_kv KV heads of dimension D, b bytes an element, per sequence:
    bytes moved 2 n H_kv D b (each key and value once for its whole group), + 8 H (D + 1) per split in fp32;
    FLOPs 4 n H D. So FLOPs per byte are 2 H / (H_kv b), far below what a GPU needs to be compute-bound.

    Raises ValueError for shapes, dtypes or strides it cannot serve.
    """
    check_paged_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, window)
    check_one_row_each(query, num_kv_tokens)
    block_size, num_kv_heads = k_cache.shape[1:3]
    max_tokens = block_tables.shape[-1] * block_size
    num_programs = len(query) * num_kv_heads
    splits = plan_splits(min(max_tokens, window or max_tokens), num_programs, num_processors(query.device))
    return decode_attention_in_splits(query, k_cache, v_cache, block_tables, num_kv_tokens, scale, window, splits)


def decode_attention_in_splits(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    scale: float,
    window: int | None,
    splits: SplitPlan,
) -> Tensor:
    """`decode_attention` of checked arguments by a given plan, which must reach the end of every sequence."""
    buffers = new_split_buffers(splits.num_splits, query, query.shape[2])
    attend_in_splits(query, k_cache, v_cache, block_tables, num_kv_tokens, scale, window, splits, buffers)
    return merge_splits(buffers, query.dtype)


def attend_in_splits(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    scale: float,
    window: int | None,
    splits: SplitPlan,
    buffers: SplitBuffers,
    num_skipped: Tensor | None = None,
) -> None:
    """The first stage: fills the buffers of `splits`; of each sequence from position `num_skipped` [num_seqs] on."""
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    if num_seqs == 0:
        return
    group_size, aligned = num_heads // num_kv_heads, is_aligned(query, k_cache, v_cache)
    skips = num_skipped is not None
    config = decode_config(head_dim, group_size, block_size, k_cache.element_size(), aligned, skips)
    num_row_tiles = triton.cdiv(group_size, config.constexprs["TILE_ROWS"])
    decode_split_kernel[(num_seqs, num_kv_heads * num_row_tiles, splits.num_splits)](
        buffers.mixes,
        buffers.log_sums,
        query,
        k_cache,
        v_cache,
        block_tables,
        num_kv_tokens,
        num_skipped if skips else num_kv_tokens,
        *query.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        *HeadStrides.of(block_tables, num_kv_tokens),
        num_heads,
        NO_WINDOW if window is None else window,
        splits.split_tokens,
        scale * LOG2_E,
        **config.constexprs,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )


@triton.jit
def decode_split_kernel(
    mixes_ptr,
    log_sums_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    num_kv_tokens_ptr,
    num_skipped_ptr,
    query_row_stride,
    query_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    table_stride,
    table_head_stride,
    length_stride,
    length_head_stride,
    num_heads,
    window,
    split_tokens,
    log2_scale,
    GROUP_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    SKIPS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (sequence, KV head × row tile, split): the query heads of one KV head over one split of the context."""
    seq, split = tl.program_id(0), tl.program_id(2)
    num_row_tiles: tl.constexpr = (GROUP_SIZE + TILE_ROWS - 1) // TILE_ROWS
    kv_head = tl.program_id(1) // num_row_tiles
    member = (tl.program_id(1) % num_row_tiles) * TILE_ROWS + tl.arange(0, TILE_ROWS)
    in_group = member < GROUP_SIZE
    head = kv_head * GROUP_SIZE + member
    out_rows = (split * tl.num_programs(0) + seq).to(tl.int64) * num_heads + head

    num_kv_tokens = tl.load(num_kv_tokens_ptr + seq * length_stride + kv_head * length_head_stride).to(tl.int32)
    num_skipped = 0
    if SKIPS:
        num_skipped = tl.load(num_skipped_ptr + seq).to(tl.int32)
    first, end = split_range(num_kv_tokens, window, num_skipped, split, split_tokens)
    acc, row_max, row_sum = fresh_state(TILE_ROWS, TILE_DIM)
    if (first >= end) & (split > 0):
        store_log_sum(log_sums_ptr, out_rows, in_group, row_max, row_sum)
        return

    query_rows = seq.to(tl.int64) * query_row_stride + head * query_head_stride
    query = load_rows(query_ptr, query_rows, in_group, HEAD_DIM, TILE_DIM, WIDEN)
    table = tables_ptr + seq.to(tl.int64) * table_stride + kv_head.to(tl.int64) * table_head_stride
    key_ptr += kv_head.to(tl.int64) * key_head_stride
    value_ptr += kv_head.to(tl.int64) * value_head_stride
    for tile_start in range(first, end, TILE_KEYS):
        positions = tile_start + tl.arange(0, TILE_KEYS)
        readable = positions < end
        acc, row_max, row_sum = attend_keys(
            acc,
            row_max,
            row_sum,
            query,
            key_ptr,
            value_ptr,
            table,
            positions,
            readable,
            readable[None, :],
            key_block_stride,
            key_slot_stride,
            value_block_stride,
            value_slot_stride,
            log2_scale,
            BLOCK_SIZE,
            HEAD_DIM,
            TILE_DIM,
            True,
            WIDEN,
        )
    store_log_sum(log_sums_ptr, out_rows, in_group, row_max, row_sum)
    store_rows(mixes_ptr, out_rows, in_group, normalised(acc, row_sum), HEAD_DIM, TILE_DIM)
