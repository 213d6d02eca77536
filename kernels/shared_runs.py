"""Decodes of which neighbours begin with the same blocks: who shares what, for kernels of the host and of a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class DecodeRun(NamedTuple):
    """Neighbouring decodes, `rows` of all, whose first `num_shared_blocks` blocks are the same and read once.

    block_tables, num_kv_tokens: theirs, of the tensors for all decodes
    """

    rows: slice
    num_shared_blocks: int
    block_tables: Tensor
    num_kv_tokens: Tensor


class DecodeRuns(NamedTuple):
    """All decodes of a step in order, in runs, of which some share.

    runs: for kernels of the host; no others look at them
    starts: int64 [num_runs + 1], the first row of each run and the number of rows; runs may be empty
    num_shared_tokens: int64 [num_seqs], what each row's run shares, in whole blocks
    max_shared_blocks: no run shares more
    """

    runs: Sequence[DecodeRun]
    starts: Tensor
    num_shared_tokens: Tensor
    max_shared_blocks: int


def decode_by_runs(
    cascade: Callable[..., Tensor],
    decode: Callable[..., Tensor],
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    runs: DecodeRuns,
    scale: float,
) -> Tensor:
    """One run after another: by `cascade`, which is told the number of shared blocks, or where none is by `decode`."""
    parts = []
    for run in runs.runs:
        own = query[run.rows], k_cache, v_cache, run.block_tables, run.num_kv_tokens
        parts.append(cascade(*own, run.num_shared_blocks, scale) if run.num_shared_blocks else decode(*own, scale))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
