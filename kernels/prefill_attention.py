"""Paged prefill attention in Triton: causal chunks of queries over their cached prefix and themselves."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_checks import check_paged_attention, check_query_start
from kernels.attention_tile import (
    LOG2_E,
    NO_WINDOW,
    attend_keys,
    fresh_state,
    load_rows,
    normalised,
    seen_by_chunk,
    store_rows,
    tile_width,
)
from kernels.chunk_tiles import chunk_rows, locate_chunk_tile, max_row_tiles
from kernels.interpreter import INTERPRETED
from kernels.launch import HeadStrides, LaunchConfig, is_aligned


def prefill_config(
    head_dim: int, group_size: int, block_size: int, element_bytes: int = 2, aligned: bool = True
) -> LaunchConfig:
    """Tiles of `prefill_kernel`. Why some get the smallest tile: see `decode_config`."""
    tile_dim = tile_width(head_dim)
    smallest = element_bytes > 2 or not aligned
    constexprs = {
        "GROUP_SIZE": group_size,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "TILE_DIM": tile_dim,
        "TILE_ROWS": 16 if smallest else min(128, 16384 // tile_dim),
        "TILE_KEYS": 16 if smallest else min(64, 4096 // tile_dim),
        "WIDEN": INTERPRETED,
    }
    return LaunchConfig(constexprs, num_warps=4 if smallest else 8, num_stages=3)


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
    """`kernels.reference.prefill_attention`, shapes as there: row i is softmax(scale · q_i Kᵀ) V over what i may see.

    Tiles as in FlashAttention-2 (Dao 2023), their rows being the (query, head of the group) pairs of one KV head. Only
    tiles on the diagonal and at the window's edge are masked. Tables, starts and lengths may be int32 too, tables and
    lengths of each sequence's KV heads apart. Chunks may be empty; neither lengths nor starts are read on the host.

    A chunk of c queries over x cached tokens sees p = c x + c (c + 1) / 2 pairs. With H query heads on H_kv KV heads of
    dimension D, b bytes an element, R rows a tile: FLOPs 4 p H D; bytes moved 2 c H D b for queries and results, and
    2 (x + c) H_kv D b for keys and values, again for each tile of queries: at most c H / (H_kv R) times, mostly from
    the L2 cache. One chunk's context is not split: a few queries over a long prefix leave most of a GPU idle.

    Raises ValueError for shapes, dtypes or strides it cannot serve.
    """
    check_paged_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, window)
    check_query_start(query_start, num_kv_tokens)
    num_tokens, num_heads, head_dim = query.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    num_seqs = num_kv_tokens.shape[0]
    mixed = torch.empty((num_tokens, num_heads, head_dim), dtype=query.dtype, device=query.device)
    if num_tokens == 0:
        return mixed
    group_size, aligned = num_heads // num_kv_heads, is_aligned(query, k_cache, v_cache)
    config = prefill_config(head_dim, group_size, block_size, query.element_size(), aligned)
    num_tiles = max_row_tiles(num_tokens, num_seqs, group_size, config.constexprs["TILE_ROWS"])
    prefill_kernel[(num_tiles, num_kv_heads)](
        mixed,
        query,
        k_cache,
        v_cache,
        block_tables,
        query_start,
        num_kv_tokens,
        *query.stride()[:2],
        *k_cache.stride()[:3],
        *v_cache.stride()[:3],
        *HeadStrides.of(block_tables, num_kv_tokens),
        num_seqs,
        num_heads,
        NO_WINDOW if window is None else window,
        scale * LOG2_E,
        **config.constexprs,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return mixed


@triton.jit
def prefill_kernel(
    mixed_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    query_start_ptr,
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
    table_head_stride,
    length_stride,
    length_head_stride,
    num_seqs,
    num_heads,
    window,
    log2_scale,
    GROUP_SIZE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (row tile, KV head): rows are the (query, head) pairs of one sequence and KV head, query by query."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # late queries see most: begin with them
    kv_head = tl.program_id(1)
    seq, chunk_start, num_cached, first_row, num_rows = locate_chunk_tile(
        tile,
        query_start_ptr,
        num_kv_tokens_ptr + kv_head * length_head_stride,
        length_stride,
        num_seqs,
        GROUP_SIZE,
        TILE_ROWS,
    )
    if first_row >= num_rows:
        return

    in_chunk, token, member, position, first_position, last_position = chunk_rows(
        chunk_start, num_cached, first_row, num_rows, GROUP_SIZE, TILE_ROWS
    )
    head = kv_head * GROUP_SIZE + member

    query_rows = token * query_row_stride + head * query_head_stride
    query = load_rows(query_ptr, query_rows, in_chunk, HEAD_DIM, TILE_DIM, WIDEN)
    table = tables_ptr + seq.to(tl.int64) * table_stride + kv_head.to(tl.int64) * table_head_stride
    key_ptr += kv_head.to(tl.int64) * key_head_stride
    value_ptr += kv_head.to(tl.int64) * value_head_stride
    acc, row_max, row_sum = fresh_state(TILE_ROWS, TILE_DIM)

    # From the first key that any row sees: the window's edge, whole tiles that every row sees, the diagonal.
    first_key = tl.maximum(first_position - window + 1, 0)
    num_edge_tiles = tl.cdiv(tl.maximum(last_position - window + 1, 0) - first_key, TILE_KEYS)
    whole_start = first_key + num_edge_tiles * TILE_KEYS
    num_whole_tiles = tl.maximum(first_position + 1 - whole_start, 0) // TILE_KEYS
    whole_end = whole_start + num_whole_tiles * TILE_KEYS
    for tile_start in range(whole_start, whole_end, TILE_KEYS):
        positions = tile_start + tl.arange(0, TILE_KEYS)
        acc, row_max, row_sum = attend_keys(
            acc,
            row_max,
            row_sum,
            query,
            key_ptr,
            value_ptr,
            table,
            positions,
            positions >= 0,
            in_chunk[:, None],
            key_block_stride,
            key_slot_stride,
            value_block_stride,
            value_slot_stride,
            log2_scale,
            BLOCK_SIZE,
            HEAD_DIM,
            TILE_DIM,
            False,
            WIDEN,
        )
    num_masked_tiles = num_edge_tiles + tl.cdiv(tl.maximum(last_position + 1 - whole_end, 0), TILE_KEYS)
    for masked_tile in range(num_masked_tiles):
        past_whole = tl.where(masked_tile < num_edge_tiles, 0, num_whole_tiles)
        positions = first_key + (masked_tile + past_whole) * TILE_KEYS + tl.arange(0, TILE_KEYS)
        seen = seen_by_chunk(positions, position, window)
        acc, row_max, row_sum = attend_keys(
            acc,
            row_max,
            row_sum,
            query,
            key_ptr,
            value_ptr,
            table,
            positions,
            positions <= last_position,
            seen,
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
    store_rows(mixed_ptr, token * num_heads + head, in_chunk, normalised(acc, row_sum), HEAD_DIM, TILE_DIM)
