"""Block tables on the device: only changes are sent, a row goes to another sequence when its owner runs no more."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine.row_tables import DeviceTables, RowTables
from engine.step_inputs import StepPacker
from engine.step_row import StepRow, StepRows
from engine.transfers import Sender, in_one_piece

CPU = torch.device("cpu")


class Running(SimpleNamespace):
    """A sequence, as far as its rank goes."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def place(tables, sequence, own):
    (row,) = tables.place([sequence], [own])
    return row


def send(tables, device):
    """Brings the device's copy up to date; returns the changes as (row, column, block id), of one group."""
    changes, _ = tables.take_changes()
    device.change(changes.shape, *map(torch.from_numpy, (changes.places, changes.block_ids)))
    rows, columns = np.divmod(changes.places, changes.shape[2])
    return list(zip(rows.tolist(), columns.tolist(), changes.block_ids.tolist(), strict=True))


BLOCKS = [SimpleNamespace(block_id=number) for number in range(60)]


def table_of(*block_ids):
    return [BLOCKS[block_id] for block_id in block_ids]


def test_only_what_differs_is_sent():
    tables, device, running = RowTables(1), DeviceTables(CPU), Running(rank=0)
    row = place(tables, running, [table_of(7, 8)])
    assert send(tables, device) == [(row, 0, 7), (row, 1, 8)]
    assert place(tables, running, [table_of(7, 8)]) == row
    assert send(tables, device) == []
    place(tables, running, [table_of(7, 8, 3)])
    assert send(tables, device) == [(row, 2, 3)]
    place(tables, running, [table_of(7, 5, 3)])  # copied on write
    assert send(tables, device) == [(row, 1, 5)]
    assert device.rows(0, torch.tensor([row]), 3).tolist() == [[7, 5, 3]]


def test_a_table_may_shrink_be_replaced_and_lose_blocks():
    tables, device, running = RowTables(1), DeviceTables(CPU), Running(rank=0)
    row = place(tables, running, [table_of(1, 2, 3, 4)])
    assert len(send(tables, device)) == 4
    place(tables, running, [[]])
    assert tables.num_blocks[0, row] == 0
    place(tables, running, [table_of(5, 2)])  # the second is on the device already
    assert send(tables, device) == [(row, 0, 5)]
    place(tables, running, [[None, BLOCKS[2], BLOCKS[6]]])  # left its window: read by nobody, so any block will do
    send(tables, device)
    assert device.rows(0, torch.tensor([row]), 3)[0, 1:].tolist() == [2, 6]


def test_rows_are_given_on_and_doubled_where_all_are_in_use():
    tables, device = RowTables(2), DeviceTables(CPU)
    lasting = [Running(rank=rank) for rank in range(9)]
    rows = [place(tables, each, [table_of(each.rank), table_of(50 - each.rank)]) for each in lasting]
    for number in range(100):
        brief = Running(rank=number)
        assert place(tables, brief, [table_of(number % 60), []]) not in rows
        brief.rank = -1
    assert tables.ids.shape == (2, 16, 16)
    further = [Running(rank=20 + number) for number in range(30)]
    rows += [place(tables, each, [BLOCKS[:40], table_of(each.rank)]) for each in further]
    assert len(set(rows)) == 39
    assert tables.ids.shape == (2, 64, 80)
    send(tables, device)
    assert device.rows(1, torch.tensor(rows), 1).flatten().tolist() == [*range(50, 41, -1), *range(20, 50)]
    assert device.rows(0, torch.tensor(rows[-1:]), 40).tolist() == [list(range(40))]


def test_a_prepared_step_finds_its_own_tables_when_the_next_is_prepared_already():
    packer, device, running = StepPacker(1, 4, ()), DeviceTables(CPU), Running(rank=0)
    steps = []
    for start, table in ((3, [7]), (4, [7, 2]), (5, [6, 2])):
        row = place(packer.tables, running, [table_of(*table)])
        steps.append(packer.inputs(StepRows.of([StepRow(running, None, start, 1, True, row)])))
    batches = [step.send(np.array([9]), [], device, Sender(CPU))[0] for step in steps]
    assert [batch.groups[0].decode_block_tables.tolist() for batch in batches] == [[[7]], [[7, 2]], [[6, 2]]]
    assert [batch.groups[0].slot_mapping.tolist() for batch in batches] == [[31], [8], [9]]


def test_a_table_that_is_too_short_is_refused():
    packer, running = StepPacker(1, 4, ()), Running(rank=0)
    row = place(packer.tables, running, [table_of(7)])
    with pytest.raises(ValueError, match="row 0: 2 blocks are needed, its table has 1"):
        packer.inputs(StepRows.of([StepRow(running, None, 4, 1, True, row)]))


def test_arrays_go_in_one_piece_each_from_a_multiple_of_16_bytes():
    arrays = [np.arange(3), np.empty(0, dtype=np.int64), np.arange(2), np.arange(5)]
    tensors = in_one_piece(arrays, CPU)
    for sent in (tensors, Sender(CPU).send(arrays)):
        assert [tensor.tolist() for tensor in sent] == [array.tolist() for array in arrays]
    assert {tensor.untyped_storage().data_ptr() for tensor in tensors} == {tensors[0].data_ptr()}
    assert [tensor.storage_offset() % 2 for tensor in tensors] == [0] * 4
