"""One step's work as packed tensors: decode rows first, then the prefill chunks back to back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


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
    """

    slot_mapping: Tensor
    decode_block_tables: Tensor
    prefill_block_tables: Tensor


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
    packed = [items[index] for index in packing]
    place = np.empty_like(packing)
    place[packing] = np.arange(len(items))
    return pack(
        num_new[packing],
        np.array([item.start_position for item in packed], dtype=np.int64),
        np.concatenate([np.asarray(item.token_ids, dtype=np.int64) for item in packed]),
        list(zip(*(item.block_tables for item in packed), strict=True)),
        place[[item.wants_logits for item in items]],
        block_size,
        device,
    )


def pack(
    num_new: np.ndarray,
    start: np.ndarray,
    token_ids: np.ndarray,
    block_tables: Sequence[Sequence[Sequence[int]]],
    sampled: np.ndarray,
    block_size: int,
    device: torch.device | str,
) -> BatchInput:
    """The tensors of sequences in packed order, those of one token first.

    num_new, start: int64 [num_seqs], new tokens and their first position; token_ids: int64 [num_tokens]
    block_tables: a table per KV group and sequence, at least as long as its tokens need
    sampled: int64 [num_sampled], sequences whose last logits are wanted, in the order in which they are
    Raises ValueError when a block table is shorter than its tokens.
    """
    num_decodes = int(np.count_nonzero(num_new == 1))
    num_kv = start + num_new
    num_blocks = -(-num_kv // block_size)
    row_start = np.zeros(len(num_new) + 1, dtype=np.int64)
    np.cumsum(num_new, out=row_start[1:])
    owner = np.repeat(np.arange(len(num_new)), num_new)
    positions = np.arange(row_start[-1]) - (row_start[:-1] - start)[owner]
    column, offset = np.divmod(positions, block_size)

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)

    def tables_of(group: Sequence[Sequence[int]]) -> GroupTables:
        tables = _pad_tables(group, num_blocks)
        return GroupTables(
            slot_mapping=to_device(tables[owner, column] * block_size + offset),
            decode_block_tables=to_device(tables[:num_decodes, : num_blocks[:num_decodes].max(initial=0)]),
            prefill_block_tables=to_device(tables[num_decodes:]),
        )

    return BatchInput(
        token_ids=to_device(token_ids),
        positions=to_device(positions),
        groups=tuple(tables_of(group) for group in block_tables),
        decode_num_kv_tokens=to_device(num_kv[:num_decodes]),
        prefill_query_start=to_device(row_start[num_decodes:] - row_start[num_decodes]),
        prefill_num_kv_tokens=to_device(num_kv[num_decodes:]),
        sample_rows=to_device(row_start[1:][sampled] - 1),
    )


def _pad_tables(block_tables: Sequence[Sequence[int]], num_blocks: np.ndarray) -> np.ndarray:
    """[num_items, max_blocks]: the blocks each item uses, padded with its first one."""
    tables = np.empty((len(block_tables), int(num_blocks.max())), dtype=np.int64)
    for row, (into, table, used) in enumerate(zip(tables, block_tables, num_blocks.tolist(), strict=True)):
        if len(table) < used:
            raise ValueError(f"item {row}: {used} blocks are needed, its table has {len(table)}")
        into[:used] = table[:used]
    is_used = np.arange(tables.shape[1]) < num_blocks[:, None]
    return np.where(is_used, tables, tables[:, :1])
