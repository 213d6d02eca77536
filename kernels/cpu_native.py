"""The kernels of a step in bfloat16 as compiled C: each is one pass over memory, where torch takes three to nine.

Attention of decodes reads keys and values where they lie, each KV head's once for the query heads that share it, and
copies none. What the C does not have (other dtypes, odd widths, chunks of prompts) is computed by torch as before.
"""

from __future__ import annotations

from ctypes import CDLL

import torch
from torch import Tensor

from kernels.cpu_attention import CpuAttention

_LANES = 16
_MOST_HEAD_DIM = 256


class NativeKernels(CpuAttention):
    """The kernels of `kernels.reference` for the CPU; `library` is that of `kernels.native_build`."""

    def __init__(self, library: CDLL) -> None:
        super().__init__()
        self._library = library

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `kernels.reference`. Reads x once and writes once; its square sum is taken on the way."""
        width = x.shape[-1]
        if not _is_served(x, weight, width):
            return super().rms_norm(x, weight, eps)
        x = x.contiguous()
        normed = torch.empty_like(x)
        self._library.rms_norm(*_pointers(normed, x, weight), x.numel() // width, width, eps, torch.get_num_threads())
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """See `kernels.reference`. The sum is rounded before it is normed, as there."""
        width = x.shape[-1]
        if not _is_served(x, weight, width):
            return super().add_rms_norm(x, residual, weight, eps)
        x, residual = x.contiguous(), residual.contiguous()
        normed, summed = torch.empty_like(x), torch.empty_like(x)
        pointers = _pointers(normed, summed, x, residual, weight)
        self._library.add_rms_norm(*pointers, x.numel() // width, width, eps, torch.get_num_threads())
        return normed, summed

    def swiglu(self, gate_up: Tensor) -> Tensor:
        """See `kernels.reference`. The gate is not rounded before it meets `up`."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        if not _is_served(gate_up, gate_up, width):
            return super().swiglu(gate_up)
        gate_up, gated = gate_up.contiguous(), gate_up.new_empty(num_rows, width)
        self._library.swiglu(*_pointers(gated, gate_up), num_rows, width, torch.get_num_threads())
        return gated

    def rope_kv_write(
        self, qkv: Tensor, cos: Tensor, sin: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor
    ) -> Tensor:
        """See `kernels.reference`."""
        num_kv_heads, head_dim = k_cache.shape[2:]
        if not (_is_served(qkv, k_cache, head_dim // 2) and k_cache.is_contiguous() and v_cache.is_contiguous()):
            return super().rope_kv_write(qkv, cos, sin, k_cache, v_cache, slot_mapping)
        num_rows, num_heads = qkv.shape[0], qkv.shape[1] // head_dim - 2 * num_kv_heads
        qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
        query = qkv.new_empty(num_rows, num_heads, head_dim)
        self._library.rope_kv_write(
            *_pointers(query, qkv, cos, sin, k_cache, v_cache, slot_mapping),
            num_rows,
            num_heads,
            num_kv_heads,
            head_dim,
            torch.get_num_threads(),
        )
        return query

    def decode_attention(
        self,
        query: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        num_kv_tokens: Tensor,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """See `kernels.reference`. Moves the visible keys and values once; scores stay fp32."""
        num_seqs, num_heads, head_dim = query.shape
        has_caches = k_cache.is_contiguous() and v_cache.is_contiguous() and num_kv_tokens.dim() == 1
        if not (has_caches and head_dim <= _MOST_HEAD_DIM and _is_served(query, k_cache, head_dim)):
            return super().decode_attention(query, k_cache, v_cache, block_tables, num_kv_tokens, scale, window)
        query, block_tables = query.contiguous(), block_tables.contiguous()
        mixed = torch.empty_like(query)
        self._library.decode_attention(
            *_pointers(mixed, query, k_cache, v_cache, block_tables),
            block_tables.shape[1],
            num_kv_tokens.data_ptr(),
            num_seqs,
            num_heads,
            k_cache.shape[2],
            head_dim,
            k_cache.shape[1],
            scale,
            window or 0,
            torch.get_num_threads(),
        )
        return mixed


def _is_served(x: Tensor, other: Tensor, width: int) -> bool:
    return x.dtype is torch.bfloat16 and other.dtype is torch.bfloat16 and width % _LANES == 0


def _pointers(*tensors: Tensor) -> list[int]:
    """Addresses, for as long as the caller holds the tensors."""
    return [tensor.data_ptr() for tensor in tensors]
