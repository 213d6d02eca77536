"""One step's work as packed tensors: decode rows first, then the prefill chunks back to back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.packed_rows import PackedRows
from engine.shared_prefixes import SharedRun


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
class DecodeRun:
    """Neighbouring decodes, `rows` of all, whose first `num_shared_blocks` blocks are the same and read once.

    block_tables, num_kv_tokens: theirs, of the tensors for all decodes
    """

    rows: slice
    num_shared_blocks: int
    block_tables: Tensor
    num_kv_tokens: Tensor


@dataclass(frozen=True, slots=True)
class GroupTables:
    """Where one KV group's keys and values lie, int64 all of them.

    slot_mapping: [num_tokens], of the step's new tokens
    decode_block_tables: [num_decodes, max_blocks]; prefill_block_tables: [num_prefills, max_blocks]
    decode_runs: all decodes in order, where a prefix of some is to be read once; else empty
    """

    slot_mapping: Tensor
    decode_block_tables: Tensor
    prefill_block_tables: Tensor
    decode_runs: tuple[DecodeRun, ...] = ()


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


def decode_runs(shared: Sequence[SharedRun], tables: Tensor, num_kv_tokens: Tensor) -> tuple[DecodeRun, ...]:
    """The runs with those between them, which share nothing; none where nobody does."""
    if not shared:
        return ()
    runs, end = [], 0
    for run in [*shared, SharedRun(len(tables), len(tables), 0)]:
        for first, last, num_blocks in ((end, run.start, 0), run):
            if first < last:
                rows = slice(first, last)
                runs.append(DecodeRun(rows, num_blocks, tables[rows], num_kv_tokens[rows]))
        end = run.end
    return tuple(runs)


def _pad_tables(block_tables: Sequence[Sequence[int]], packed: PackedRows) -> np.ndarray:
    """[num_items, max_blocks]: the blocks each item uses, padded with its first one."""
    tables = np.zeros((len(block_tables), int(packed.num_blocks.max())), dtype=np.int64)
    for row, (into, table, used) in enumerate(zip(tables, block_tables, packed.num_blocks.tolist(), strict=True)):
        if len(table) < used:
            raise ValueError(f"item {row}: {used} blocks are needed, its table has {len(table)}")
        into[:used] = table[:used]
        into[used:] = table[0]
    return tables
