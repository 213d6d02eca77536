"""What a kernel asks of its tensors, and refuses with one line otherwise: never a wrong number for a wrong shape."""

import torch
from torch import Tensor

FLOAT_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def require(is_right: bool, message: str) -> None:
    """Raises ValueError(message) unless `is_right`."""
    if not is_right:
        raise ValueError(message)


def require_float(name: str, tensor: Tensor) -> None:
    """Sums are kept in fp32, so fp64 would silently lose digits."""
    require(
        tensor.dtype in FLOAT_DTYPES,
        f"{name} is {tensor.dtype}; the kernel takes float32, float16 and bfloat16 (float64 only as torch reference)",
    )


def require_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    require(tuple(tensor.shape) == shape, f"{name} is {list(tensor.shape)}; it must be {list(shape)}")


def require_contiguous(name: str, tensor: Tensor) -> None:
    require(tensor.is_contiguous(), f"{name} has the strides {tensor.stride()}; it must be contiguous")


def require_index(name: str, tensor: Tensor, num_entries: int) -> None:
    """An int64 list: ids, slots or positions."""
    require(tensor.dtype == torch.int64, f"{name} is {tensor.dtype}; it must be int64")
    require_shape(name, tensor, (num_entries,))
    require_contiguous(name, tensor)
