"""Block tables as arrays of block ids, kept from step to step: a decode changes its table once in a block's tokens."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np

from core.interfaces import Block
from core.request import Sequence

_UNREAD = 0
"""A block id that every memory has, where a block left its group's window and has no id any more: it is never read."""

_LEAST_FORGOTTEN = 64


class BlockIds:
    """The ids of all running sequences' tables. Entries of sequences that have ended are dropped from time to time."""

    def __init__(self) -> None:
        self._tables: dict[Sequence, list[_TableIds]] = {}
        self._most_kept = _LEAST_FORGOTTEN

    def __len__(self) -> int:
        return len(self._tables)

    def of(self, sequence: Sequence) -> list[np.ndarray]:
        """One array a KV group, int64 [num_blocks]. What it holds stays as it is, whatever becomes of the table."""
        tables = self._tables.get(sequence)
        if tables is None:
            tables = self._begin(sequence)
        return [ids.of(table) for ids, table in zip(tables, sequence.tables, strict=True)]

    def _begin(self, sequence: Sequence) -> list[_TableIds]:
        if len(self._tables) >= self._most_kept:
            self._tables = {kept: tables for kept, tables in self._tables.items() if kept.rank >= 0}
            self._most_kept = 2 * len(self._tables) + _LEAST_FORGOTTEN
        tables = self._tables[sequence] = [_TableIds() for _ in sequence.tables]
        return tables


class _TableIds:
    """The ids of one table. To compare it with what it was costs nanoseconds a block; to read its ids, tens."""

    def __init__(self) -> None:
        self._blocks: list[Block | None] = []
        self._room = np.empty(0, dtype=np.int64)
        self._ids = self._room

    def of(self, table: SequenceOf[Block | None]) -> np.ndarray:
        if table == self._blocks:
            return self._ids
        num_same = len(self._blocks) if table[: len(self._blocks)] == self._blocks else 0
        if num_same == 0 or len(table) > len(self._room):  # arrays handed out before must not change
            room = np.empty(2 * len(table), dtype=np.int64)
            room[:num_same] = self._ids[:num_same]
            self._room = room
        self._blocks = list(table)
        new = [_UNREAD if block is None else block.block_id for block in table[num_same:]]
        self._room[num_same : len(table)] = new
        self._ids = self._room[: len(table)]
        return self._ids
