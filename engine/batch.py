"""One step's work as packed tensors: decode rows first, then the prefill chunks back to back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.packed_rows import PackedRows
from engine.shared_prefixes import SharedRun
from kernels.shared_runs import DecodeRun, DecodeRuns


@dataclass(frozen=True, slots=True)
class BatchItem:
    """What one sequence computes in this step: tokens at consecutive positions from start_position on.

    block_tables: block ids of the sequence, one table a KV group, of which those up to its last new token are used.
    """

    token_ids: Sequence[int]
    start_position: int
    block_tables: Sequence[Sequence[int]]
    wants_logits: bool


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where one KV group's keys and values lie, int64 all of them.

    slot_mapping: [num_tokens], of the step's new tokens
    decode_block_tables: [num_decodes, max_blocks]; prefill_block_tables: [num_prefills, max_blocks]
    decode_runs: all decodes, where a prefix of some is to be read once; else None
    """

    slot_mapping: Tensor
    decode_block_tables: Tensor
    prefill_block_tables: Tensor
    decode_runs: DecodeRuns | None = None


@dataclass(frozen=True, slots=True)
class BatchInput:
    """The tensors a forward pass reads, int64 all of them.

    token_ids, positions: [num_tokens]; groups: one set of tables a KV group
    decode_num_kv_tokens: [num_decodes]; prefill_num_kv_tokens: [num_prefills]
    prefill_query_start: [num_prefills + 1], counted from the first prefill row
    sample_rows: [num_sampled], packed rows whose logits are wanted
    num_kv_tokens include the tokens of this step.
    """

    token_ids: Tensor
    positions: Tensor
    groups: tuple[GroupTables, ...]
    decode_num_kv_tokens: Tensor
    prefill_query_start: Tensor
    prefill_num_kv_tokens: Tensor
    sample_rows: Tensor

    @property
    def num_decodes(self) -> int:
        return self.decode_num_kv_tokens.shape[0]

    @property
    def num_prefills(self) -> int:
        return self.prefill_num_kv_tokens.shape[0]


def build_batch(items: Sequence[BatchItem], block_size: int, device: torch.device | str) -> BatchInput:
    """Pack the items of a step; the logits come back in the order of the items that want them.

    Every item of one token takes the decode path, whoever asked for it: the arithmetic is the same.
    Raises ValueError when the batch is empty or a block table is shorter than its tokens.
    """
    if not items:
        raise ValueError("a batch needs at least one item")
    num_new = np.array([len(item.token_ids) for item in items], dtype=np.int64)
    packing = np.concatenate([np.flatnonzero(num_new == 1), np.flatnonzero(num_new != 1)])
    items_packed = [items[index] for index in packing]
    place = np.empty_like(packing)
    place[packing] = np.arange(len(items))
    start = np.array([item.start_position for item in items_packed], dtype=np.int64)
    sampled = place[[item.wants_logits for item in items]]
    packed = PackedRows.of(num_new[packing], start, sampled, block_size)
    token_ids = np.concatenate([np.asarray(item.token_ids, dtype=np.int64) for item in items_packed])
    tables = [_pad_tables(group, packed) for group in zip(*(item.block_tables for item in items_packed), strict=True)]

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)

    groups = [
        GroupTables(
            tensor(table[packed.owner, packed.column] * block_size + packed.offset),
            tensor(table[: packed.num_decodes, : packed.num_decode_columns]),
            tensor(table[packed.num_decodes :, : packed.num_prefill_columns]),
        )
        for table in tables
    ]
    num_decodes, num_kv_tokens = packed.num_decodes, packed.num_kv_tokens
    return BatchInput(
        token_ids=tensor(token_ids),
        positions=tensor(packed.positions),
        groups=tuple(groups),
        decode_num_kv_tokens=tensor(num_kv_tokens[:num_decodes]),
        prefill_query_start=tensor(packed.query_start),
        prefill_num_kv_tokens=tensor(num_kv_tokens[num_decodes:]),
        sample_rows=tensor(packed.sample_rows),
    )


def with_gaps(shared: Sequence[SharedRun], num_decodes: int) -> list[SharedRun]:
    """The runs with those between them, which share nothing."""
    runs, end = [], 0
    for run in [*shared, SharedRun(num_decodes, num_decodes, 0)]:
        runs += [part for part in (SharedRun(end, run.start, 0), run) if part.start < part.end]
        end = run.end
    return runs


def run_arrays(runs: Sequence[SharedRun], block_size: int) -> list[np.ndarray]:
    """starts and num_shared_tokens of `DecodeRuns`."""
    starts = np.array([0, *(run.end for run in runs)], dtype=np.int64)
    num_shared = np.array([run.num_blocks * block_size for run in runs], dtype=np.int64)
    return [starts, np.repeat(num_shared, np.diff(starts))]


def decode_runs(
    runs: Sequence[SharedRun], tables: Tensor, num_kv_tokens: Tensor, arrays: Sequence[Tensor]
) -> DecodeRuns:
    """Of all decodes' tables and lengths; `arrays` are those of `run_arrays`, on their device."""
    parts = []
    for run in runs:
        rows = slice(run.start, run.end)
        parts.append(DecodeRun(rows, run.num_blocks, tables[rows], num_kv_tokens[rows]))
    starts, num_shared_tokens = arrays
    return DecodeRuns(parts, starts, num_shared_tokens, max(run.num_blocks for run in runs))


def _pad_tables(block_tables: Sequence[Sequence[int]], packed: PackedRows) -> np.ndarray:
    """[num_items, max_blocks]: the blocks each item uses, padded with its first one."""
    tables = np.zeros((len(block_tables), int(packed.num_blocks.max())), dtype=np.int64)
    for row, (into, table, used) in enumerate(zip(tables, block_tables, packed.num_blocks.tolist(), strict=True)):
        if len(table) < used:
            raise ValueError(f"item {row}: {used} blocks are needed, its table has {len(table)}")
        into[:used] = table[:used]
        into[used:] = table[0]
    return tables
