"""Cascade decode attention in Triton: a prefix that neighbours share is read once, not once per sequence."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_checks import check_one_row_each, check_paged_attention, check_runs
from kernels.attention_tile import (
    LOG2_E,
    attend_keys,
    fresh_state,
    load_rows,
    normalised,
    store_log_sum,
    store_rows,
    tile_width,
)
from kernels.chunk_tiles import find_sequence, max_row_tiles
from kernels.decode_attention import attend_in_splits, decode_attention
from kernels.interpreter import INTERPRETED
from kernels.launch import LaunchConfig, is_aligned
from kernels.shared_runs import DecodeRuns
from kernels.splits import SplitBuffers, SplitPlan, merge_splits, new_split_buffers, num_processors, plan_splits

MAX_ROWS = 64  # of a tile; more spill registers


def cascade_config(
    head_dim: int, group_size: int, num_rows: int, block_size: int, element_bytes: int = 2
) -> LaunchConfig:
    """Tiles of `shared_prefix_kernel` for `num_rows` (sequence, query head) pairs per KV head."""
    tile_dim = tile_width(head_dim)
    smallest = element_bytes > 2
    constexprs = {
        "GROUP_SIZE": group_size,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "TILE_DIM": tile_dim,
        "TILE_ROWS": 16 if smallest else min(tile_width(num_rows), MAX_ROWS),
        "TILE_KEYS": 16 if smallest else min(64, 4096 // tile_dim),
        "WIDEN": INTERPRETED,
    }
    return LaunchConfig(constexprs, num_warps=8, num_stages=3)


def cascade_decode_attention(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    runs: DecodeRuns,
    scale: float,
) -> Tensor:
    """`kernels.reference.cascade_decode_attention`, shapes as there: equal to decode attention, in two parts.

    Over a shared prefix, the queries of all sequences of a run are rows of one matrix; over what follows it, each
    sequence has its own splits as in `kernels.decode_attention`. All parts are merged by their log-sum-exp in one pass.
    Whatever the runs, there are as many launches, of as many programs; who shares is not looked at on the host. Where
    rows are not aligned to 16 bytes, plain decode attention is taken.

    B sequences share L tokens and see n more each; H query heads on H_kv KV heads of dimension D, b bytes an element,
    R rows a tile: bytes moved 2 H_kv D b (L ceil(B H / (H_kv R)) + B n), those of L mostly from the L2 cache after the
    first tile, in place of 2 H_kv D b B (L + n); and 8 H (D + 1) B per split; FLOPs 4 B (L + n) H D either way.

    Raises ValueError for shapes, dtypes or strides it cannot serve. That the tables do share is not checked.
    """
    check_paged_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, None)
    check_one_row_each(query, num_kv_tokens)
    check_runs(runs, block_tables)
    if runs.max_shared_blocks == 0 or len(query) == 0 or not is_aligned(query, k_cache, v_cache):
        return decode_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, scale)
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group_size, processors = num_heads // num_kv_heads, num_processors(query.device)
    config = cascade_config(head_dim, group_size, num_seqs * group_size, block_size, query.element_size())
    num_row_tiles = triton.cdiv(num_seqs * group_size, config.constexprs["TILE_ROWS"])
    shared_splits = plan_splits(runs.max_shared_blocks * block_size, num_row_tiles * num_kv_heads, processors)
    own_splits = plan_splits(block_tables.shape[1] * block_size, num_seqs * num_kv_heads, processors)
    return cascade_in_splits(
        query, k_cache, v_cache, block_tables, num_kv_tokens, runs, scale, config, shared_splits, own_splits
    )


def cascade_in_splits(
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    runs: DecodeRuns,
    scale: float,
    config: LaunchConfig,
    shared_splits: SplitPlan,
    own_splits: SplitPlan,
) -> Tensor:
    """`cascade_decode_attention` of checked arguments by given plans, for the prefixes and for what follows them."""
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads, num_runs = k_cache.shape[2], len(runs.starts) - 1
    num_row_tiles = max_row_tiles(num_seqs, num_runs, num_heads // num_kv_heads, config.constexprs["TILE_ROWS"])
    buffers = new_split_buffers(shared_splits.num_splits + own_splits.num_splits, query, head_dim)
    shared_prefix_kernel[(num_row_tiles, num_kv_heads, shared_splits.num_splits)](
        buffers.mixes,
        buffers.log_sums,
        query,
        k_cache,
        v_cache,
        block_tables,
        runs.starts,
        runs.num_shared_tokens,
        num_kv_tokens,
        *query.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        block_tables.stride(0),
        num_seqs,
        num_heads,
        num_runs,
        shared_splits.split_tokens,
        scale * LOG2_E,
        **config.constexprs,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    own = SplitBuffers(*(part[shared_splits.num_splits :] for part in buffers))
    attend_in_splits(
        query, k_cache, v_cache, block_tables, num_kv_tokens, scale, None, own_splits, own, runs.num_shared_tokens
    )
    return merge_splits(buffers, query.dtype)


@triton.jit
def shared_prefix_kernel(
    mixes_ptr,
    log_sums_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    starts_ptr,
    num_shared_tokens_ptr,
    num_kv_tokens_ptr,
    query_row_stride,
    query_head_stride,
    key_block_stride,
    key_slot_stride,
    key_head_stride,
    value_block_stride,
    value_slot_stride,
    value_head_stride,
    table_stride,
    num_seqs,
    num_heads,
    num_runs,
    split_tokens,
    log2_scale,
    GROUP_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (row tile, KV head, split): (sequence, head) rows of one run and KV head over one split of its prefix.

    Runs own row tiles as prefill chunks do. Every row of a run that shares nothing, or ends before this split, is told
    so to the merger.
    """
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    run = find_sequence(tile, starts_ptr, num_runs, GROUP_SIZE, TILE_ROWS)
    run_start = tl.load(starts_ptr + run).to(tl.int32)
    num_rows = (tl.load(starts_ptr + run + 1).to(tl.int32) - run_start) * GROUP_SIZE
    first_row = (tile - run_start * GROUP_SIZE // TILE_ROWS - run) * TILE_ROWS
    if first_row >= num_rows:
        return

    row = first_row + tl.arange(0, TILE_ROWS)
    in_run = row < num_rows
    seq = (run_start + row // GROUP_SIZE).to(tl.int64)
    head = kv_head * GROUP_SIZE + row % GROUP_SIZE
    first = split * split_tokens
    end = tl.minimum(first + split_tokens, tl.load(num_shared_tokens_ptr + run_start).to(tl.int32))
    sees_keys = in_run & (first + 0 * row < end)  # a block: so must masks be

    num_kv_tokens = tl.load(num_kv_tokens_ptr + seq, mask=sees_keys, other=0).to(tl.int32)
    query_rows = seq * query_row_stride + head * query_head_stride
    query = load_rows(query_ptr, query_rows, sees_keys, HEAD_DIM, TILE_DIM, WIDEN)
    table = tables_ptr + run_start.to(tl.int64) * table_stride
    key_ptr += kv_head.to(tl.int64) * key_head_stride
    value_ptr += kv_head.to(tl.int64) * value_head_stride
    acc, row_max, row_sum = fresh_state(TILE_ROWS, TILE_DIM)
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
            readable[None, :] & (positions[None, :] < num_kv_tokens[:, None]),
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
    out_rows = (split.to(tl.int64) * num_seqs + seq) * num_heads + head
    store_log_sum(log_sums_ptr, out_rows, in_run, row_max, row_sum)
    store_rows(mixes_ptr, out_rows, sees_keys, normalised(acc, row_sum), HEAD_DIM, TILE_DIM)
