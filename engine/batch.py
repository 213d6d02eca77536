"""One step's work as packed tensors: decode rows first, then the prefill chunks back to back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.shared_prefixes import SharedRun, Sharing, SharingRule, common_blocks, worthwhile_runs


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
    sharing: Sharing = (),
) -> BatchInput:
    """The tensors of sequences in packed order, those of one token first.

    num_new, start: int64 [num_seqs], new tokens and their first position; token_ids: int64 [num_tokens]
    block_tables: a table per KV group and sequence, at least as long as its tokens need
    sampled: int64 [num_sampled], sequences whose last logits are wanted, in the order in which they are
    sharing: when decodes that share a prefix read it once, of each KV group
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

    decode_num_kv_tokens = to_device(num_kv[:num_decodes])

    def tables_of(group: Sequence[Sequence[int]], rule: SharingRule | None) -> GroupTables:
        tables = _pad_tables(group, num_blocks)
        decoding = tables[:num_decodes, : num_blocks[:num_decodes].max(initial=0)]
        decode_block_tables = to_device(decoding)
        runs = [] if rule is None else _shared_runs(decoding, num_blocks[:num_decodes] - 1, block_size, rule)
        return GroupTables(
            slot_mapping=to_device(tables[owner, column] * block_size + offset),
            decode_block_tables=decode_block_tables,
            prefill_block_tables=to_device(tables[num_decodes:]),
            decode_runs=_decode_runs(runs, decode_block_tables, decode_num_kv_tokens),
        )

    return BatchInput(
        token_ids=to_device(token_ids),
        positions=to_device(positions),
        groups=tuple(map(tables_of, block_tables, sharing or (None,) * len(block_tables))),
        decode_num_kv_tokens=decode_num_kv_tokens,
        prefill_query_start=to_device(row_start[num_decodes:] - row_start[num_decodes]),
        prefill_num_kv_tokens=to_device(num_kv[num_decodes:]),
        sample_rows=to_device(row_start[1:][sampled] - 1),
    )


def _shared_runs(
    tables: np.ndarray, num_whole_blocks: np.ndarray, block_size: int, rule: SharingRule
) -> list[SharedRun]:
    return worthwhile_runs(common_blocks(tables, num_whole_blocks), block_size, rule)


def _decode_runs(shared: Sequence[SharedRun], tables: Tensor, num_kv_tokens: Tensor) -> tuple[DecodeRun, ...]:
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


def _pad_tables(block_tables: Sequence[Sequence[int]], num_blocks: np.ndarray) -> np.ndarray:
    """[num_items, max_blocks]: the blocks each item uses, padded with its first one."""
    tables = np.empty((len(block_tables), int(num_blocks.max())), dtype=np.int64)
    for row, (into, table, used) in enumerate(zip(tables, block_tables, num_blocks.tolist(), strict=True)):
        if len(table) < used:
            raise ValueError(f"item {row}: {used} blocks are needed, its table has {len(table)}")
        into[:used] = table[:used]
    is_used = np.arange(tables.shape[1]) < num_blocks[:, None]
    return np.where(is_used, tables, tables[:, :1])
