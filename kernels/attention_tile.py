"""What all paged attention kernels do with one tile of keys and values: online softmax, in base 2.

Softmax over tiles (FlashAttention, Dao et al. 2022): a row keeps the maximum m of its scores so far, the sum
l = Σ 2^(score - m) and the mix acc = Σ 2^(score - m) value; a new maximum rescales both. Scores are q·k times
scale · log2(e), so that 2^x replaces e^x.
"""

import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
NO_WINDOW = 2**30  # tokens; more than any context


def tile_width(size: int) -> int:
    """The power of two that a dimension is padded to; `tl.dot` needs 16."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def load_rows(base, offsets, readable, WIDTH: tl.constexpr, TILE_WIDTH: tl.constexpr, WIDEN: tl.constexpr):
    """[rows, TILE_WIDTH]: `WIDTH` values from base + offset on, 0 where not `readable` and in the padding."""
    columns = tl.arange(0, TILE_WIDTH)
    mask = readable[:, None] & (columns < WIDTH)[None, :]
    rows = tl.load(base + offsets[:, None] + columns[None, :], mask=mask, other=0.0)
    if WIDEN:
        rows = rows.to(tl.float32)
    return rows


@triton.jit
def locate_slots(table, positions, readable, BLOCK_SIZE: tl.constexpr):
    """(block ids, offsets in the block) of positions, through the block table; both int64. Unreadable ones: block 0."""
    block_ids = tl.load(table + positions // BLOCK_SIZE, mask=readable, other=0).to(tl.int64)
    return block_ids, (positions % BLOCK_SIZE).to(tl.int64)


@triton.jit
def fresh_state(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """(acc, row_max, row_sum) of rows that have seen no key."""
    acc = tl.full([ROWS, WIDTH], 0.0, dtype=tl.float32)
    row_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    return acc, row_max, tl.full([ROWS], 0.0, dtype=tl.float32)


@triton.jit
def split_range(num_kv_tokens, window, num_skipped, split, split_tokens):
    """(first, end) of the positions that one split of a sequence sees; none where first is not before end."""
    first = tl.maximum(num_kv_tokens - window, num_skipped) + split * split_tokens
    return first, tl.minimum(first + split_tokens, num_kv_tokens)


@triton.jit
def seen_by_chunk(positions, position, window):
    """[rows, keys]: whether the query at a row's `position` sees a key, causally and within its window."""
    return (positions[None, :] <= position[:, None]) & (positions[None, :] > position[:, None] - window)


@triton.jit
def fold_scores(acc, row_max, row_sum, scores, value):
    """The three row states after one more tile: scores [rows, keys] with -inf where a row does not see a key."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    pivot = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen nothing yet: -inf - -inf is NaN
    weights = tl.exp2(scores - pivot[:, None])
    rescale = tl.exp2(row_max - pivot)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    acc = acc * rescale[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return acc, new_max, row_sum


@triton.jit
def attend_keys(
    acc,
    row_max,
    row_sum,
    query,
    key_ptr,
    value_ptr,
    table,
    positions,
    readable,
    visible,
    key_block_stride,
    key_slot_stride,
    value_block_stride,
    value_slot_stride,
    log2_scale,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    MASKED: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Folds the keys at `positions` of one KV head into the rows' states.

    query: [rows, TILE_DIM]; readable: [keys], what may be loaded at all; visible: [rows, keys], what a row sees of it
    (not looked at where MASKED is false: every row sees all).
    """
    block_ids, offsets = locate_slots(table, positions, readable, BLOCK_SIZE)
    key_rows = block_ids * key_block_stride + offsets * key_slot_stride
    value_rows = block_ids * value_block_stride + offsets * value_slot_stride
    key = load_rows(key_ptr, key_rows, readable, HEAD_DIM, TILE_DIM, WIDEN)
    value = load_rows(value_ptr, value_rows, readable, HEAD_DIM, TILE_DIM, WIDEN)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * log2_scale
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    return fold_scores(acc, row_max, row_sum, scores, value)


@triton.jit
def normalised(acc, row_sum):
    """Rows of attention; zeros for a row that saw no key."""
    return acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]


@triton.jit
def store_rows(base, rows, stored, values, WIDTH: tl.constexpr, TILE_WIDTH: tl.constexpr):
    """Writes [rows, WIDTH] of `values` to consecutive rows of a contiguous tensor, those marked `stored`."""
    columns = tl.arange(0, TILE_WIDTH)
    mask = stored[:, None] & (columns < WIDTH)[None, :]
    places = base + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :]
    tl.store(places, values.to(base.dtype.element_ty), mask=mask)


@triton.jit
def store_log_sum(base, rows, stored, row_max, row_sum):
    """Writes log2 Σ 2^score of each row, by which splits are merged; -inf for a row that saw no key."""
    seen = row_sum > 0.0
    log_sum = tl.where(seen, row_max + tl.log2(tl.where(seen, row_sum, 1.0)), float("-inf"))
    tl.store(base + rows.to(tl.int64), log_sum, mask=stored)
