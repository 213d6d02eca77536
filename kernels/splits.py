"""Attention of one query over a long context, cut into splits that run side by side: how many, and their merger.

FlashDecoding (Dao et al., 2023): every split leaves its own softmax-weighted mix o_s and L_s = log2 Σ 2^score;
the whole is Σ 2^(L_s - max L) o_s / Σ 2^(L_s - max L).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_tile import normalised, store_rows, tile_width

PROGRAMS_PER_PROCESSOR = 4
MIN_SPLIT_TOKENS = 256
MAX_SPLIT_TOKENS = 4096
MERGED_AT_ONCE = 16


class SplitPlan(NamedTuple):
    """Split i of a sequence takes its visible tokens from i * split_tokens on; shorter sequences leave splits empty."""

    num_splits: int
    split_tokens: int


def plan_splits(max_tokens: int, num_unsplit_programs: int, num_processors: int) -> SplitPlan:
    """Enough splits to fill the device, yet none under MIN_SPLIT_TOKENS, and none over MAX_SPLIT_TOKENS.

    Lengths stay on the device, so the plan rests on `max_tokens`, what the block tables can hold. The upper bound keeps
    one long sequence among many short ones from being the last to finish.
    """
    wanted = triton.cdiv(PROGRAMS_PER_PROCESSOR * num_processors, max(1, num_unsplit_programs))
    even = triton.cdiv(max_tokens, wanted)
    rounded = triton.cdiv(even, MIN_SPLIT_TOKENS) * MIN_SPLIT_TOKENS
    split_tokens = min(max(rounded, MIN_SPLIT_TOKENS), MAX_SPLIT_TOKENS)
    return SplitPlan(max(1, triton.cdiv(max_tokens, split_tokens)), split_tokens)


def num_processors(device: torch.device) -> int:
    """Streaming multiprocessors (compute units) of a GPU; 1 for the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


class SplitBuffers(NamedTuple):
    """What splits leave behind: mixes [num_splits, num_seqs, num_heads, dim], log_sums fp32 [.., .., num_heads].

    A single split writes the result itself: its mixes are the output, in the output's dtype, and nothing is merged.
    A split with log_sum -inf may leave its mix unwritten.
    """

    mixes: Tensor
    log_sums: Tensor


def new_split_buffers(num_splits: int, query: Tensor, dim: int) -> SplitBuffers:
    """Uninitialised buffers for queries [num_seqs, num_heads, ...]."""
    shape = (num_splits, *query.shape[:2])
    dtype = query.dtype if num_splits == 1 else torch.float32
    return SplitBuffers(query.new_empty((*shape, dim), dtype=dtype), query.new_empty(shape, dtype=torch.float32))


def merge_splits(buffers: SplitBuffers, dtype: torch.dtype) -> Tensor:
    """The attention [num_seqs, num_heads, dim] over all splits.

    Bytes moved per (sequence, head): 4 (dim + 1) per split that is not empty, and dim elements written.
    FLOPs: 3 dim per split.
    """
    mixes, log_sums = buffers
    num_splits, num_seqs, num_heads, dim = mixes.shape
    if num_splits == 1:
        return mixes[0]
    merged = torch.empty((num_seqs, num_heads, dim), dtype=dtype, device=mixes.device)
    merge_splits_kernel[(num_seqs * num_heads,)](
        merged,
        mixes,
        log_sums,
        num_splits,
        **merge_constexprs(dim),
    )
    return merged


def merge_constexprs(dim: int) -> dict[str, int]:
    """Constant arguments of `merge_splits_kernel`."""
    return {"DIM": dim, "TILE_DIM": tile_width(dim), "TILE_SPLITS": MERGED_AT_ONCE}


@triton.jit
def merge_splits_kernel(
    merged_ptr,
    mixes_ptr,
    log_sums_ptr,
    num_splits,
    DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    TILE_SPLITS: tl.constexpr,
):
    """One program merges the splits of one (sequence, head): row `program_id` of every split."""
    row = tl.program_id(0)
    num_rows = tl.num_programs(0)
    columns = tl.arange(0, TILE_DIM)
    acc = tl.zeros([TILE_DIM], dtype=tl.float32)
    running_max = float("-inf")
    running_sum = 0.0
    for first in range(0, num_splits, TILE_SPLITS):
        splits = first + tl.arange(0, TILE_SPLITS)
        places = splits.to(tl.int64) * num_rows + row
        log_sums = tl.load(log_sums_ptr + places, mask=splits < num_splits, other=float("-inf"))
        written = (log_sums > float("-inf"))[:, None] & (columns < DIM)[None, :]
        mixes = tl.load(mixes_ptr + places[:, None] * DIM + columns[None, :], mask=written, other=0.0)
        new_max = tl.maximum(running_max, tl.max(log_sums, 0))
        pivot = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(log_sums - pivot)
        rescale = tl.exp2(running_max - pivot)
        acc = acc * rescale + tl.sum(weights[:, None] * mixes, 0)
        running_sum = running_sum * rescale + tl.sum(weights, 0)
        running_max = new_max
    rows = row + tl.zeros([1], dtype=tl.int64)
    merged = normalised(acc[None, :], running_sum + tl.zeros([1], dtype=tl.float32))
    store_rows(merged_ptr, rows, rows >= 0, merged, DIM, TILE_DIM)
