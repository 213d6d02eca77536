"""The products of a mixture of experts in Triton: rows sorted by expert, each multiplied by its expert's weight."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_contiguous, require_float, require_index
from kernels.chunk_tiles import find_sequence, max_row_tiles
from kernels.interpreter import INTERPRETED
from kernels.launch import LaunchConfig, is_aligned


def expert_config(
    num_pairs: int, num_experts: int, num_in: int, element_bytes: int = 2, aligned: bool = True
) -> LaunchConfig:
    """Tiles of `expert_product_kernel`: as many rows as an expert has on the average, so that few are padding.

    Why some get the smallest tile: see `decode_config`.
    """
    smallest = element_bytes > 2 or not aligned
    tile_rows = 16 if smallest else min(64, max(16, triton.next_power_of_2(num_pairs // num_experts)))
    constexprs = {
        "NUM_IN": num_in,
        "TILE_ROWS": tile_rows,
        "TILE_OUT": 32 if smallest else 128,
        "TILE_IN": 32 if smallest else 64,
        "WIDEN": INTERPRETED,
    }
    return LaunchConfig(constexprs, num_warps=8 if tile_rows == 64 else 4, num_stages=3)


def expert_product(x: Tensor, weights: Tensor, rows: Tensor, starts: Tensor) -> Tensor:
    """`kernels.reference.expert_product`, shapes as there: y[i] = W_e x[rows[i]] for starts[e] <= i < starts[e + 1].

    The starts are not read on the host: for any division among the experts as many programs are launched, and those
    that are not needed end at once. Rows of x may be strided.

    n pairs, `in` numbers to `out`, b bytes an element: FLOPs 2 n in out; bytes moved b in out for each expert that has
    rows (again for each further tile of its rows, mostly from the L2 cache), b n in for x (again for each 128 of `out`,
    mostly likewise) and b n out for the result.

    Raises ValueError for other shapes, dtypes and layouts.
    """
    _require_supported(x, weights, rows, starts)
    num_experts, num_out, num_in = weights.shape
    product = torch.empty(len(rows), num_out, dtype=x.dtype, device=x.device)
    if not product.numel():
        return product
    config = expert_config(len(rows), num_experts, num_in, x.element_size(), is_aligned(x, weights))
    num_tiles = max_row_tiles(len(rows), num_experts, 1, config.constexprs["TILE_ROWS"])
    expert_product_kernel[(num_tiles, triton.cdiv(num_out, config.constexprs["TILE_OUT"]))](
        product,
        x,
        weights,
        rows,
        starts,
        x.stride(0),
        weights.stride(0),
        num_experts,
        num_out,
        **config.constexprs,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return product


@triton.jit
def expert_product_kernel(
    product_ptr,
    x_ptr,
    weights_ptr,
    rows_ptr,
    starts_ptr,
    x_stride,
    expert_stride,
    num_experts,
    num_out,
    NUM_IN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUT: tl.constexpr,
    TILE_IN: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Program (row tile, column tile): rows of one expert, found as those of a prefill chunk are."""
    tile = tl.program_id(0)
    expert = find_sequence(tile, starts_ptr, num_experts, 1, TILE_ROWS)
    start = tl.load(starts_ptr + expert).to(tl.int32)
    end = tl.load(starts_ptr + expert + 1).to(tl.int32)
    first = start + (tile - start // TILE_ROWS - expert) * TILE_ROWS
    if first >= end:
        return

    place = first + tl.arange(0, TILE_ROWS)
    is_row = place < end
    row = tl.load(rows_ptr + place, mask=is_row, other=0)
    column = (tl.program_id(1) * TILE_OUT + tl.arange(0, TILE_OUT)).to(tl.int64)
    is_column = column < num_out
    x_rows = x_ptr + row[:, None] * x_stride
    weight_rows = weights_ptr + expert.to(tl.int64) * expert_stride + column[:, None] * NUM_IN
    acc = tl.zeros([TILE_ROWS, TILE_OUT], dtype=tl.float32)
    for first_in in range(0, NUM_IN, TILE_IN):
        inner = first_in + tl.arange(0, TILE_IN)[None, :]
        values = tl.load(x_rows + inner, mask=is_row[:, None] & (inner < NUM_IN), other=0.0)
        weight = tl.load(weight_rows + inner, mask=is_column[:, None] & (inner < NUM_IN), other=0.0)
        if WIDEN:
            values = values.to(tl.float32)
            weight = weight.to(tl.float32)
        acc = tl.dot(values, tl.trans(weight), acc, input_precision="ieee")
    places = product_ptr + place.to(tl.int64)[:, None] * num_out + column[None, :]
    tl.store(places, acc.to(product_ptr.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def _require_supported(x: Tensor, weights: Tensor, rows: Tensor, starts: Tensor) -> None:
    require_float("x", x)
    require(weights.dim() == 3, f"weights is {list(weights.shape)}; expected [num_experts, out, in]")
    num_experts, _, num_in = weights.shape
    require(
        x.dim() == 2 and x.shape[1] == num_in and x.stride(1) == 1,
        f"x is {list(x.shape)} with strides {x.stride()}; expected [num_tokens, {num_in}] with contiguous rows",
    )
    require(weights.dtype == x.dtype, f"weights is {weights.dtype}, x is {x.dtype}; they must be the same")
    require_contiguous("weights", weights)
    require_index("rows", rows, len(rows))
    require_index("starts", starts, num_experts + 1)
