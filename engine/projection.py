"""Linear maps of a decoder, each with its weight in the layout in which the device reads it best."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import linear

Projection = Callable[[Tensor], Tensor]
"""[num_rows, in] -> [num_rows, out]."""

_PACKED_FOR_NUM_ROWS = 128
"""oneDNN chooses a layout for so many rows. This one read at the memory's speed at 1 to 16 rows, and was as fast as any
at 512."""


def projection(weight: Tensor, bias: Tensor | None = None) -> Projection:
    """x -> x weight^T + bias for a weight [out, in].

    bf16 weights on a CPU that multiplies bf16 are copied into oneDNN's blocked layout: read row by row, the few rows of
    a decode step come to half the memory's bandwidth. The copy takes as many bytes as the weight.
    """
    if is_copied(weight.device.type, weight.dtype):
        return _Packed(weight, bias)
    return partial(linear, weight=weight, bias=bias)


def is_copied(device_type: str, dtype: torch.dtype) -> bool:
    """Whether `projection` copies weights of that dtype on such a device."""
    return device_type == "cpu" and dtype is torch.bfloat16 and _multiplies_bf16()


class _Packed:
    """A weight in oneDNN's own layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_NUM_ROWS)
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        projected: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return projected


def _multiplies_bf16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
