"""RMSNorm, alone or fused with the addition of a residual."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.checks import require, require_contiguous, require_float, require_shape

MAX_HIDDEN = 16_384
"""A row is held in registers at once. One of 32,768 spills them on every target (`kernels.aot`): refused."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang, Sennrich 2019), summed in fp32.

    x: [..., hidden], copied first where it is not contiguous; weight: [hidden]. Returns the shape of x.

    Moves 2 rows x hidden elements (x read, y written) and the weight; 4 FLOPs an element.

    Raises ValueError for other shapes, dtypes and layouts, and for hidden > MAX_HIDDEN.
    """
    x = x.contiguous()
    _require_supported(x, weight)
    normalised = torch.empty_like(x)
    _launch(x, x, weight, normalised, normalised, eps, has_residual=False)
    return normalised


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(s), s) for s = x + residual, rounded to the dtype as the unfused addition would be.

    x, residual: [..., hidden], contiguous; weight: [hidden]. Returns two new tensors of that shape.

    Moves 4 rows x hidden elements (both read, both results written) and the weight, where the two unfused calls move
    5; 5 FLOPs an element.

    Raises ValueError as rms_norm does.
    """
    _require_supported(x, weight)
    require_shape("residual", residual, tuple(x.shape))
    require(residual.dtype == x.dtype, f"residual is {residual.dtype}, x is {x.dtype}; they must be the same")
    require_contiguous("residual", residual)
    normalised, summed = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, normalised, summed, eps, has_residual=True)
    return normalised, summed


def _launch(
    x: Tensor, residual: Tensor, weight: Tensor, normalised: Tensor, summed: Tensor, eps: float, has_residual: bool
) -> None:
    num_rows = x.numel() // len(weight)
    if num_rows:
        tile = norm_tile(len(weight))
        grid = (triton.cdiv(num_rows, tile["TILE_ROWS"]),)
        rms_norm_kernel[grid](
            x,
            residual,
            weight,
            normalised,
            summed,
            num_rows,
            eps,
            HAS_RESIDUAL=has_residual,
            **tile,
            num_warps=norm_warps(len(weight)),
        )


def norm_tile(hidden: int) -> dict[str, int]:
    """The kernel's compile-time values: whole rows, several of them where they are short (the norm of a head)."""
    width = triton.next_power_of_2(hidden)
    return {"HIDDEN": hidden, "TILE_ROWS": max(1, 1024 // width), "TILE_HIDDEN": width}


def norm_warps(hidden: int) -> int:
    """16 elements a thread, until a program has 16 warps."""
    return min(16, max(4, triton.next_power_of_2(hidden) // 512))


@triton.jit
def rms_norm_kernel(
    x,
    residual,
    weight,
    normalised,
    summed,
    num_rows,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    HIDDEN: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_HIDDEN: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * TILE_ROWS + tl.arange(0, TILE_ROWS)[:, None]
    column = tl.arange(0, TILE_HIDDEN)[None, :]
    is_inside = (row < num_rows) & (column < HIDDEN)
    place = row * HIDDEN + column
    values = tl.load(x + place, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        values += tl.load(residual + place, mask=is_inside, other=0.0).to(tl.float32)
        rounded = values.to(summed.dtype.element_ty)
        tl.store(summed + place, rounded, mask=is_inside)
        values = rounded.to(tl.float32)
    mean_square = tl.sum(values * values, axis=1, keep_dims=True) / HIDDEN
    scale = tl.load(weight + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
    result = values / tl.sqrt(mean_square + eps) * scale
    tl.store(normalised + place, result.to(normalised.dtype.element_ty), mask=is_inside)


def _require_supported(x: Tensor, weight: Tensor) -> None:
    require_float("x", x)
    require_shape("weight", weight, (x.shape[-1],))
    require(weight.dtype == x.dtype, f"weight is {weight.dtype}, x is {x.dtype}; they must be the same")
    require(0 < len(weight) <= MAX_HIDDEN, f"hidden is {len(weight)}; the kernel takes 1 to {MAX_HIDDEN:,}")
    require_contiguous("x", x)
    require_contiguous("weight", weight)
