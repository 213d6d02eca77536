"""The block tables of running sequences, a row each, on the host and on the device: of a step only changes are sent."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from core.interfaces import Block
from core.request import Sequence
from engine.transfers import NOTHING

_UNREAD = 0
"""A block id that every memory has, where a block left its group's window and has no id any more: it is never read."""

_FIRST_ROWS, _FIRST_COLUMNS = 16, 16


class TableChanges(NamedTuple):
    """What a step's tables have that those of the step before did not.

    shape: of the tables, [num_groups, num_rows, num_columns]; places: int64, into the flattened tables, all different;
    block_ids: int64, one a place.
    """

    shape: tuple[int, int, int]
    places: np.ndarray
    block_ids: np.ndarray


class RowTables:
    """The host's copy, as of the step that was prepared last. A sequence keeps its row until it runs no more.

    To compare a table with what it was costs nanoseconds a block, to read its ids tens; and a decode changes its table
    once in a block's tokens.

    ids: int64 [num_groups, num_rows, num_columns]; what lies behind a table's end is left over from others.
    num_blocks: int64 [num_groups, num_rows], the tables' lengths. Both double when rows or columns run out.
    """

    def __init__(self, num_groups: int) -> None:
        self.ids = np.zeros((num_groups, _FIRST_ROWS, _FIRST_COLUMNS), dtype=np.int64)
        self.num_blocks = np.zeros((num_groups, _FIRST_ROWS), dtype=np.int64)
        self._rows: dict[Sequence, _Row] = {}
        self._free = list(range(_FIRST_ROWS))[::-1]
        self._changes = _Changes([], [], [[] for _ in range(num_groups)], [[] for _ in range(num_groups)])

    def place(
        self, sequences: SequenceOf[Sequence], tables: Iterable[SequenceOf[SequenceOf[Block | None]]]
    ) -> list[int]:
        """The rows of the sequences, which from now on hold the tables of each, one a KV group."""
        rows = [self._rows.get(sequence) or self._begin(sequence) for sequence in sequences]
        self._update_all(rows, tables)
        return [row.number for row in rows]

    def bring_up_to_date(
        self, sequences: SequenceOf[Sequence], tables: Iterable[SequenceOf[SequenceOf[Block | None]]]
    ) -> None:
        """As `place`, of sequences that have rows, which they keep."""
        self._update_all(map(self._rows.__getitem__, sequences), tables)

    def _update_all(self, rows: Iterable[_Row], tables: Iterable[SequenceOf[SequenceOf[Block | None]]]) -> None:
        for row, own in zip(rows, tables, strict=True):
            if own != row.tables:
                self._update(row, own)

    def _update(self, row: _Row, tables: SequenceOf[SequenceOf[Block | None]]) -> None:
        for group, table in enumerate(tables):
            if table != row.tables[group]:
                self._write(group, row, list(table))

    def take_changes(self) -> tuple[TableChanges, list[tuple[np.ndarray, np.ndarray]]]:
        """What was written since the last call; and by group the rows written to, with the first column of each."""
        shape, (places, block_ids, rows, columns) = self.ids.shape, self._changes
        changes = TableChanges(shape, _joined(places), _joined(block_ids))
        written = [(_array(own), _array(first)) for own, first in zip(rows, columns, strict=True)]
        for noted in (places, block_ids, *rows, *columns):
            noted.clear()
        return changes, written

    def _write(self, group: int, row: _Row, table: list[Block | None]) -> None:
        kept = row.tables[group]
        num_same = len(kept) if table[: len(kept)] == kept else 0
        row.tables[group] = table
        if len(table) > self.ids.shape[2]:
            self._grow(self.ids.shape[1], 2 * len(table))
        self.num_blocks[group, row.number] = len(table)
        new = np.array([_UNREAD if block is None else block.block_id for block in table[num_same:]], dtype=np.int64)
        into = self.ids[group, row.number, num_same : len(table)]
        (columns,) = (into != new).nonzero()
        if columns.size:
            into[columns] = block_ids = new[columns]
            self._note(group, row.number, num_same + columns, block_ids)

    def _note(self, group: int, row: int, columns: np.ndarray, block_ids: np.ndarray) -> None:
        start = (group * self.ids.shape[1] + row) * self.ids.shape[2]
        self._changes.places.append(start + columns)
        self._changes.block_ids.append(block_ids)
        self._changes.rows[group].append(row)
        self._changes.first_columns[group].append(columns.item(0))

    def _begin(self, sequence: Sequence) -> _Row:
        if not self._free:
            self._take_back_rows()
        row = self._rows[sequence] = _Row(self._free.pop(), [[] for _ in self.ids])
        self.num_blocks[:, row.number] = 0
        return row

    def _take_back_rows(self) -> None:
        """Rows of sequences that run no more are free again; if those are few, there will be more rows."""
        ended = [sequence for sequence in self._rows if sequence.rank < 0]
        self._free = [self._rows.pop(sequence).number for sequence in ended]
        num_rows = self.ids.shape[1]
        if 4 * len(ended) < num_rows:
            self._grow(2 * num_rows, self.ids.shape[2])
            self._free += range(num_rows, 2 * num_rows)

    def _grow(self, num_rows: int, num_columns: int) -> None:
        _, old_rows, old_columns = old_shape = self.ids.shape
        new_rows, new_columns = num_rows - old_rows, num_columns - old_columns
        self.ids = np.pad(self.ids, ((0, 0), (0, new_rows), (0, new_columns)))
        self.num_blocks = np.pad(self.num_blocks, ((0, 0), (0, new_rows)))
        old_places = [np.unravel_index(places, old_shape) for places in self._changes.places]
        self._changes.places[:] = [np.ravel_multi_index(places, self.ids.shape) for places in old_places]


class DeviceTables:
    """The device's copy, as of the step that was begun last: int64 [num_groups, num_rows, num_columns]."""

    def __init__(self, device: torch.device) -> None:
        self._keep(torch.zeros(0, 0, 0, dtype=torch.int64, device=device))

    def _keep(self, ids: Tensor) -> None:
        self._ids, self._shape = ids, tuple(ids.shape)
        self._flat, self._groups = ids.view(-1), ids.unbind(0)
        self._no_rows = ids.new_empty(0, 0)

    def change(self, shape: tuple[int, int, int], places: Tensor, block_ids: Tensor) -> None:
        """As `TableChanges`, with tensors of the device."""
        if self._shape != shape:
            groups, rows, columns = self._shape
            larger = self._ids.new_zeros(shape)
            larger[:groups, :rows, :columns] = self._ids
            self._keep(larger)
        if len(places):
            self._flat.index_copy_(0, places, block_ids)

    def rows(self, group: int, rows: Tensor, num_columns: int) -> Tensor:
        """[len(rows), num_columns], a copy; [0, 0] of no rows."""
        if not len(rows):
            return self._no_rows
        return self._groups[group].narrow(1, 0, num_columns).index_select(0, rows)


class _Row(NamedTuple):
    """tables: by group, the blocks that the row holds."""

    number: int
    tables: list[list[Block | None]]


class _Changes(NamedTuple):
    """places, block_ids: of each change of a row, as in `TableChanges`; rows, first_columns: likewise, by group."""

    places: list[np.ndarray]
    block_ids: list[np.ndarray]
    rows: list[list[int]]
    first_columns: list[list[int]]


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else NOTHING


def _array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64) if numbers else NOTHING
