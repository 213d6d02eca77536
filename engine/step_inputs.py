"""What a step's tensors are made of: decided with the step, on the host; sent when the step begins."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import islice
from typing import NamedTuple

import numpy as np
from torch import Tensor

from engine.batch import BatchInput, GroupTables, decode_runs, run_arrays, with_gaps
from engine.packed_rows import PackedRows
from engine.row_tables import DeviceTables, RowTables, TableChanges
from engine.shared_prefixes import SharedPrefixes, SharedRun, Sharing
from engine.step_row import StepRows
from engine.transfers import NOTHING, Sender


class StepInputs(NamedTuple):
    """All but the tokens, which may not be known yet.

    table_rows: int64 [num_rows]; slot_mappings: of each KV group, int64 [num_tokens]; shared_runs: likewise, all
    decodes, none where nothing is shared; run_arrays: of the groups that share
    """

    packed: PackedRows
    table_rows: np.ndarray
    changes: TableChanges
    slot_mappings: list[np.ndarray]
    shared_runs: list[list[SharedRun]]
    run_arrays: list[np.ndarray]

    def send(
        self, token_ids: np.ndarray, further: SequenceOf[np.ndarray], tables: DeviceTables, sender: Sender
    ) -> tuple[BatchInput, list[Tensor]]:
        """The tensors, by one copy to the device; brings its tables up to date. Nothing waits.

        token_ids: int64 [num_tokens]; further: int64 arrays that go along, returned as tensors.
        """
        packed = self.packed
        rows = [token_ids, packed.positions, packed.query_start, packed.sample_rows]
        rows += _split(packed.num_kv_tokens, packed.num_decodes)
        changes = [self.changes.places, self.changes.block_ids, *_split(self.table_rows, packed.num_decodes)]
        sent = iter(sender.send([*changes, *rows, *self.slot_mappings, *self.run_arrays, *further]))
        places, block_ids, decode_rows, prefill_rows = islice(sent, len(changes))
        token_ids_there, positions, query_start, sample_rows, decode_num_kv, prefill_num_kv = islice(sent, len(rows))
        tables.change(self.changes.shape, places, block_ids)
        groups = []
        slots = list(islice(sent, len(self.slot_mappings)))
        for group, (slot_mapping, runs) in enumerate(zip(slots, self.shared_runs, strict=True)):
            decoding = tables.rows(group, decode_rows, packed.num_decode_columns)
            prefilling = tables.rows(group, prefill_rows, packed.num_prefill_columns)
            shared = decode_runs(runs, decoding, decode_num_kv, list(islice(sent, 2))) if runs else None
            groups.append(GroupTables(slot_mapping, decoding, prefilling, shared))
        batch = BatchInput(
            token_ids_there, positions, tuple(groups), decode_num_kv, query_start, prefill_num_kv, sample_rows
        )
        return batch, list(sent)


class StepPacker:
    """Makes the inputs of one step after another; the tables of a step hold what the steps before have brought."""

    def __init__(self, num_groups: int, block_size: int, sharing: Sharing) -> None:
        self.tables = RowTables(num_groups)
        self._block_size = block_size
        self._sharing = [rule and SharedPrefixes(rule, block_size) for rule in sharing or (None,) * num_groups]
        self._last: tuple[StepRows, PackedRows] | None = None

    def inputs(self, rows: StepRows) -> StepInputs:
        """The rows' tables are placed. Raises ValueError where a table is shorter than its tokens."""
        table_rows = rows.table_rows
        packed = self._packed(rows)
        self._require_long_enough(packed, table_rows)
        changes, written = self.tables.take_changes()
        owners = table_rows if len(packed.owner) == len(rows) else table_rows[packed.owner]
        decoding, _ = _split(table_rows, packed.num_decodes)
        whole = packed.column[: packed.num_decodes]
        slot_mappings, shared_runs, arrays = [], [], []
        for ids, sharing, (changed_rows, first_columns) in zip(self.tables.ids, self._sharing, written, strict=True):
            slot_mappings.append(ids[owners, packed.column] * self._block_size + packed.offset)
            runs = sharing.runs(decoding, ids, whole, changed_rows, first_columns) if sharing else []
            shared_runs.append(with_gaps(runs, packed.num_decodes) if runs else [])
            arrays += run_arrays(shared_runs[-1], self._block_size) if runs else []
        return StepInputs(packed, table_rows, changes, slot_mappings, shared_runs, arrays)

    def _packed(self, rows: StepRows) -> PackedRows:
        if self._last is not None and rows.follow(self._last[0]):
            packed = self._last[1].a_token_further(self._block_size)
        else:
            wanted = np.flatnonzero(rows.wants_logits)
            packed = PackedRows.of(rows.num_new, rows.start, wanted, self._block_size)
        self._last = rows, packed
        return packed

    def _require_long_enough(self, packed: PackedRows, table_rows: np.ndarray) -> None:
        num_blocks = self.tables.num_blocks.take(table_rows, axis=1)
        if (num_blocks < packed.num_blocks).any():
            group, row = np.argwhere(num_blocks < packed.num_blocks)[0]
            raise ValueError(
                f"row {row}: {packed.num_blocks[row]} blocks are needed, its table has {num_blocks[group, row]}"
            )


def _split(array: np.ndarray, num_first: int) -> tuple[np.ndarray, np.ndarray]:
    """Its first elements and the others; the array itself, where these are none."""
    return (array, NOTHING) if num_first == len(array) else (array[:num_first], array[num_first:])
