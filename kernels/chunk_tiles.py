"""Which rows of a packed batch of prefill chunks a program computes, found on the device: the host knows no lengths."""

import triton
import triton.language as tl


def max_row_tiles(num_tokens: int, num_seqs: int, rows_per_query: int, tile_rows: int) -> int:
    """Programs to launch: enough for any division of the tokens into chunks; those that are not needed end at once."""
    return num_tokens * rows_per_query // tile_rows + num_seqs


@triton.jit
def find_sequence(tile, query_start_ptr, num_seqs, ROWS_PER_QUERY: tl.constexpr, TILE_ROWS: tl.constexpr):
    """The sequence that row tile `tile` of the launch belongs to, by bisection.

    Sequence s owns the tiles from query_start[s] · ROWS_PER_QUERY // TILE_ROWS + s on: at least as many as it needs.
    """
    seq = 0
    stride = 1
    while stride < num_seqs:
        stride *= 2
    while stride > 0:
        candidate = seq + stride
        start = tl.load(query_start_ptr + candidate, mask=candidate < num_seqs, other=0).to(tl.int32)
        owned = start * ROWS_PER_QUERY // TILE_ROWS + candidate <= tile
        seq = tl.where((candidate < num_seqs) & owned, candidate, seq)
        stride //= 2
    return seq


@triton.jit
def locate_chunk_tile(
    tile,
    query_start_ptr,
    num_kv_tokens_ptr,
    length_stride,
    num_seqs,
    ROWS_PER_QUERY: tl.constexpr,
    TILE_ROWS: tl.constexpr,
):
    """(sequence, its first packed token, its cached tokens, the tile's first row, rows of the whole chunk).

    Rows are the ROWS_PER_QUERY heads of one query after those of the query before; the tile may begin after them all.
    """
    seq = find_sequence(tile, query_start_ptr, num_seqs, ROWS_PER_QUERY, TILE_ROWS)
    chunk_start = tl.load(query_start_ptr + seq).to(tl.int32)
    num_queries = tl.load(query_start_ptr + seq + 1).to(tl.int32) - chunk_start
    num_cached = tl.load(num_kv_tokens_ptr + seq * length_stride).to(tl.int32) - num_queries
    first_row = (tile - chunk_start * ROWS_PER_QUERY // TILE_ROWS - seq) * TILE_ROWS
    return seq, chunk_start, num_cached, first_row, num_queries * ROWS_PER_QUERY


@triton.jit
def chunk_rows(chunk_start, num_cached, first_row, num_rows, ROWS_PER_QUERY: tl.constexpr, TILE_ROWS: tl.constexpr):
    """Of a tile found by `locate_chunk_tile`: (which rows the chunk has, their packed tokens, their heads of a query,
    their positions, the first position and the last).
    """
    row = first_row + tl.arange(0, TILE_ROWS)
    query = row // ROWS_PER_QUERY
    first_query = first_row // ROWS_PER_QUERY
    last_query = (tl.minimum(first_row + TILE_ROWS, num_rows) - 1) // ROWS_PER_QUERY
    tokens, heads, positions = (chunk_start + query).to(tl.int64), row % ROWS_PER_QUERY, num_cached + query
    return row < num_rows, tokens, heads, positions, num_cached + first_query, num_cached + last_query
