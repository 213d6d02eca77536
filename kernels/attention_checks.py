"""What the attention kernels refuse: shapes that do not fit together, or that they were not made for."""

import torch
from torch import Tensor

from kernels.checks import require, require_float
from kernels.shared_runs import DecodeRuns

MAX_HEAD_DIM = 256
MAX_LATENT_DIM = 512
MAX_ROPE_DIM = 64


def check_paged_attention(
    query: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, num_kv_tokens: Tensor, window: int | None
) -> None:
    """Raises ValueError unless query [rows, num_heads, head_dim] can attend to these caches through these tables."""
    _require_form("k_cache", k_cache, k_cache.dim() == 4, "[num_blocks, block_size, num_kv_heads, head_dim]")
    _require_form("v_cache", v_cache, v_cache.shape == k_cache.shape, f"that of k_cache, {list(k_cache.shape)}")
    num_kv_heads, head_dim = k_cache.shape[2:]
    _require_form(
        "query",
        query,
        query.dim() == 3 and query.shape[2] == head_dim,
        f"[rows, num_heads, {head_dim}] by the caches",
    )
    num_heads = query.shape[1]
    require(
        num_heads > 0 and num_heads % num_kv_heads == 0,
        f"query has {num_heads} heads; expected a multiple of the caches' {num_kv_heads} KV heads",
    )
    require(head_dim <= MAX_HEAD_DIM, f"head_dim is {head_dim}; expected at most {MAX_HEAD_DIM}")
    _check_window(window)
    if num_kv_tokens.dim() == 2:
        check_head_tables(block_tables, num_kv_tokens, num_kv_heads)
    else:
        check_tables(block_tables, num_kv_tokens)
    check_memory(query=query, k_cache=k_cache, v_cache=v_cache)


def check_latent_attention(
    query: Tensor,
    latent_cache: Tensor,
    block_tables: Tensor,
    num_kv_tokens: Tensor,
    latent_dim: int,
    window: int | None,
) -> None:
    """Raises ValueError unless query [rows, num_heads, latent_dim + rope_dim] can attend to this latent cache."""
    _require_form(
        "latent_cache", latent_cache, latent_cache.dim() == 3, "[num_blocks, block_size, latent_dim + rope_dim]"
    )
    width = latent_cache.shape[2]
    _require_form(
        "query", query, query.dim() == 3 and query.shape[2] == width, f"[rows, num_heads, {width}] by the cache"
    )
    rope_dim = width - latent_dim
    require(
        0 < latent_dim <= MAX_LATENT_DIM, f"latent_dim is {latent_dim}; expected at least 1, at most {MAX_LATENT_DIM}"
    )
    require(
        0 < rope_dim <= MAX_ROPE_DIM,
        f"the cache is {rope_dim} wider than latent_dim; expected a rope_dim of at least 1, at most {MAX_ROPE_DIM}",
    )
    _check_window(window)
    check_tables(block_tables, num_kv_tokens)
    check_memory(query=query, latent_cache=latent_cache)


def check_tables(block_tables: Tensor, num_kv_tokens: Tensor) -> None:
    """Raises ValueError unless there is one row of block ids and one length per sequence."""
    _require_form("num_kv_tokens", num_kv_tokens, num_kv_tokens.dim() == 1, "[num_seqs]")
    num_seqs = len(num_kv_tokens)
    _require_form(
        "block_tables",
        block_tables,
        block_tables.dim() == 2 and len(block_tables) == num_seqs,
        f"[{num_seqs}, max_blocks] by num_kv_tokens",
    )
    _require_integers(block_tables=block_tables, num_kv_tokens=num_kv_tokens)


def check_head_tables(block_tables: Tensor, num_kv_tokens: Tensor, num_kv_heads: int) -> None:
    """Raises ValueError unless there is one row of block ids and one length per sequence and KV head."""
    num_seqs = len(num_kv_tokens)
    _require_form(
        "num_kv_tokens",
        num_kv_tokens,
        num_kv_tokens.shape[1] == num_kv_heads,
        f"[num_seqs], or with {num_kv_heads} heads",
    )
    _require_form(
        "block_tables",
        block_tables,
        block_tables.dim() == 3 and block_tables.shape[:2] == num_kv_tokens.shape,
        f"[{num_seqs}, {num_kv_heads}, max_blocks] by num_kv_tokens",
    )
    _require_integers(block_tables=block_tables, num_kv_tokens=num_kv_tokens)


def check_one_row_each(query: Tensor, num_kv_tokens: Tensor) -> None:
    """Raises ValueError unless there is one query per sequence."""
    num_seqs = len(num_kv_tokens)
    require(len(query) == num_seqs, f"query has {len(query)} rows; expected one for each of {num_seqs} sequences")


def check_runs(runs: DecodeRuns, block_tables: Tensor) -> None:
    """Raises ValueError unless there is a start for each run, a share for each row, and room for it in the tables, one
    for all heads.
    """
    _require_form("block_tables", block_tables, block_tables.dim() == 2, "[num_seqs, max_blocks]")
    num_seqs, most = block_tables.shape
    _require_form("starts", runs.starts, runs.starts.dim() == 1 and len(runs.starts) > 0, "[num_runs + 1]")
    shared = runs.num_shared_tokens
    _require_form("num_shared_tokens", shared, shared.shape == (num_seqs,), f"[{num_seqs}] by block_tables")
    _require_integers(starts=runs.starts, num_shared_tokens=shared)
    require(
        0 <= runs.max_shared_blocks <= most,
        f"max_shared_blocks is {runs.max_shared_blocks}; expected 0 to {most} by block_tables",
    )


def check_query_start(query_start: Tensor, num_kv_tokens: Tensor) -> None:
    """Raises ValueError unless there is a start for each sequence and the end of the last."""
    num_seqs = len(num_kv_tokens)
    _require_form(
        "query_start", query_start, query_start.shape == (num_seqs + 1,), f"[{num_seqs + 1}], one more than sequences"
    )
    _require_integers(query_start=query_start)


def check_memory(**tensors: Tensor) -> None:
    """Raises ValueError unless all have one dtype that the kernels take, and a last dimension without gaps."""
    first_name, first = next(iter(tensors.items()))
    require_float(first_name, first)
    for name, tensor in tensors.items():
        require(tensor.dtype == first.dtype, f"{name} is {tensor.dtype}; expected that of {first_name}, {first.dtype}")
        _require_unit_stride(name, tensor)


def _check_window(window: int | None) -> None:
    require(window is None or window >= 1, f"window is {window}; expected None, or 1 and more: the token itself")


def _require_integers(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        require(tensor.dtype in (torch.int64, torch.int32), f"{name} is {tensor.dtype}; expected int64 or int32")
        _require_unit_stride(name, tensor)


def _require_unit_stride(name: str, tensor: Tensor) -> None:
    stride = tensor.stride(-1)
    require(stride == 1 or tensor.shape[-1] <= 1, f"{name} has stride {stride} in its last dimension; expected 1")


def _require_form(name: str, tensor: Tensor, holds: bool, expected: str) -> None:
    require(holds, f"{name} is {list(tensor.shape)}; expected {expected}")
