"""Runs of decodes that share their first blocks, for the tests of kernels, batches and recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from engine.batch import BatchInput, decode_runs, run_arrays
from engine.shared_prefixes import SharedRun
from kernels.shared_runs import DecodeRuns


def runs_of(runs: Sequence[SharedRun], block_tables: Tensor, num_kv_tokens: Tensor, block_size: int) -> DecodeRuns:
    """Of all decodes, whose runs these are, those that share nothing included."""
    return decode_runs(runs, block_tables, num_kv_tokens, list(map(torch.from_numpy, run_arrays(runs, block_size))))


def sharing(batch: BatchInput, runs: Sequence[SharedRun], block_size: int) -> BatchInput:
    """The batch of one KV group, its decodes in these runs."""
    (group,) = batch.groups
    shared = runs_of(runs, group.decode_block_tables, batch.decode_num_kv_tokens, block_size)
    return replace(batch, groups=(replace(group, decode_runs=shared),))
