"""One step's work as packed tensors: decode rows first, then the prefill chunks back to back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class BatchItem(NamedTuple):
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
    start = np.array([item.start_position for item in items], dtype=np.int64)
    packing = np.concatenate([np.flatnonzero(num_new == 1), np.flatnonzero(num_new != 1)])
    num_decodes = int(np.count_nonzero(num_new == 1))
    packed = [items[index] for index in packing]
    num_new, start = num_new[packing], start[packing]

    num_kv = start + num_new
    num_blocks = -(-num_kv // block_size)
    row_start = np.concatenate([[0], np.cumsum(num_new)])
    owner = np.repeat(np.arange(len(packed)), num_new)
    positions = np.arange(row_start[-1]) - (row_start[:-1] - start)[owner]

    last_row_of_item = np.empty(len(items), dtype=np.int64)
    last_row_of_item[packing] = row_start[1:] - 1
    wanted = np.array([item.wants_logits for item in items])

    def to_device(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64)).to(device)

    def tables_of(group: int) -> GroupTables:
        tables = _pad_tables([item.block_tables[group] for item in packed], num_blocks)
        return GroupTables(
            slot_mapping=to_device(tables[owner, positions // block_size] * block_size + positions % block_size),
            decode_block_tables=to_device(tables[:num_decodes, : num_blocks[:num_decodes].max(initial=0)]),
            prefill_block_tables=to_device(tables[num_decodes:]),
        )

    return BatchInput(
        token_ids=to_device(np.concatenate([np.asarray(item.token_ids, dtype=np.int64) for item in packed])),
        positions=to_device(positions),
        groups=tuple(tables_of(group) for group in range(len(items[0].block_tables))),
        decode_num_kv_tokens=to_device(num_kv[:num_decodes]),
        prefill_query_start=to_device(row_start[num_decodes:] - row_start[num_decodes]),
        prefill_num_kv_tokens=to_device(num_kv[num_decodes:]),
        sample_rows=to_device(last_row_of_item[wanted]),
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
