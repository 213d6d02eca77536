"""What the attention kernels refuse: shapes that do not fit together, or that they were not made for."""

import torch
from torch import Tensor

MAX_HEAD_DIM = 256
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, num_kv_tokens: Tensor, window: int | None
) -> None:
    """Raises ValueError unless query [rows, num_heads, head_dim] can attend to these caches through these tables."""
    num_kv_heads, head_dim = k_cache.shape[-2:] if k_cache.ndim == 4 else (0, 0)
    _require(k_cache.ndim == 4, "k_cache", k_cache, "[num_blocks, block_size, num_kv_heads, head_dim]")
    _require(v_cache.shape == k_cache.shape, "v_cache", v_cache, f"that of k_cache, {_text(k_cache)}")
    _require(
        query.ndim == 3 and query.shape[2] == head_dim, "query", query, f"[rows, num_heads, {head_dim}] by the caches"
    )
    _require(
        query.shape[1] > 0 and query.shape[1] % num_kv_heads == 0,
        "query",
        query,
        f"num_heads a multiple of the caches' {num_kv_heads} KV heads",
    )
    _require(head_dim <= MAX_HEAD_DIM, "query", query, f"head_dim of at most {MAX_HEAD_DIM}")
    if window is not None and window < 1:
        raise ValueError(f"window {window}: expected None or at least 1, the token itself")
    check_tables(block_tables, num_kv_tokens)
    check_memory(query=query, k_cache=k_cache, v_cache=v_cache)


def check_tables(block_tables: Tensor, num_kv_tokens: Tensor) -> None:
    """Raises ValueError unless there is one row of integers and one length per sequence."""
    num_seqs = num_kv_tokens.shape[0] if num_kv_tokens.ndim == 1 else -1
    _require(num_seqs >= 0, "num_kv_tokens", num_kv_tokens, "[num_seqs]")
    _require(
        block_tables.ndim == 2 and block_tables.shape[0] == num_seqs,
        "block_tables",
        block_tables,
        f"[{num_seqs}, max_blocks] by num_kv_tokens",
    )
    _check_integers(block_tables=block_tables, num_kv_tokens=num_kv_tokens)


def _check_integers(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"{name} of dtype {tensor.dtype}: expected int64 or int32")
        if tensor.stride(-1) != 1:
            raise ValueError(f"{name} with stride {tensor.stride(-1)} in its last dimension: expected 1")


def check_query_start(query_start: Tensor, num_kv_tokens: Tensor) -> None:
    """Raises ValueError unless there is one start per sequence and the end of the last."""
    _require(
        query_start.shape == (num_kv_tokens.shape[0] + 1,),
        "query_start",
        query_start,
        f"[{num_kv_tokens.shape[0] + 1}], one more than num_kv_tokens",
    )
    _check_integers(query_start=query_start)


def check_memory(**tensors: Tensor) -> None:
    """Raises ValueError unless all have one supported dtype and a last dimension without gaps."""
    first_name, first = next(iter(tensors.items()))
    if first.dtype not in DTYPES:
        raise ValueError(f"{first_name} of dtype {first.dtype}: expected one of {', '.join(map(str, DTYPES))}")
    for name, tensor in tensors.items():
        if tensor.dtype != first.dtype:
            raise ValueError(f"{name} of dtype {tensor.dtype}: expected that of {first_name}, {first.dtype}")
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} with stride {tensor.stride(-1)} in its last dimension: expected 1")


def _require(holds: bool, name: str, tensor: Tensor, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} of shape {_text(tensor)}: expected {expected}")


def _text(tensor: Tensor) -> str:
    return str(list(tensor.shape))
