"""How a kernel is launched for one shape: filled in by a pure function of it, read by the ahead-of-time check too."""

from typing import NamedTuple

from torch import Tensor

VECTOR = 16
"""Triton compiles a kernel anew for pointers (in bytes) and strides (in elements) that are multiples of this."""


class LaunchConfig(NamedTuple):
    """Constant arguments of a kernel, warps a program, and stages of its loads in flight."""

    constexprs: dict[str, int | bool]
    num_warps: int
    num_stages: int


class HeadStrides(NamedTuple):
    """From one sequence, and from one KV head, to the next, in block tables and in lengths. 0: all are alike."""

    table: int
    table_head: int
    length: int
    length_head: int

    @classmethod
    def of(cls, block_tables: Tensor, num_kv_tokens: Tensor) -> "HeadStrides":
        if num_kv_tokens.dim() == 1:
            return cls(block_tables.stride(0), 0, num_kv_tokens.stride(0), 0)
        return cls(*block_tables.stride()[:2], *num_kv_tokens.stride())


def is_aligned(*tensors: Tensor) -> bool:
    """Whether rows can be loaded 16 bytes at a time; if not, every element has an address of its own in a register."""
    return all(
        tensor.data_ptr() % VECTOR == 0 and all(stride % VECTOR == 0 for stride in tensor.stride()[:-1])
        for tensor in tensors
    )
