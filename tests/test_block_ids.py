"""Block ids that are kept from step to step are those of the table, and steps that were decided keep theirs."""

from types import SimpleNamespace

from engine.block_ids import BlockIds


class Running(SimpleNamespace):
    """A sequence, as far as its tables go."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


BLOCKS = [SimpleNamespace(block_id=number * 10) for number in range(9)]


def ids(kept, running):
    return [array.tolist() for array in kept.of(running)]


def test_a_table_may_grow_shrink_change_and_lose_blocks():
    kept, table = BlockIds(), BLOCKS[1:3]
    running = Running(tables=[table], rank=0)
    assert ids(kept, running) == [[10, 20]]
    table.append(BLOCKS[5])
    table.append(BLOCKS[6])
    assert ids(kept, running) == [[10, 20, 50, 60]]
    table[1] = BLOCKS[8]  # copied on write
    assert ids(kept, running) == [[10, 80, 50, 60]]
    table[0] = None  # left its window: read by nobody, so any block will do
    assert ids(kept, running)[0][1:] == [80, 50, 60]
    table.clear()
    assert ids(kept, running) == [[]]
    table += BLOCKS[2:5]
    assert ids(kept, running) == [[20, 30, 40]]


def test_what_a_step_was_given_stays_as_it_was():
    kept, table = BlockIds(), BLOCKS[1:3]
    running = Running(tables=[table], rank=0)
    (before,) = kept.of(running)
    table.append(BLOCKS[3])
    (grown,) = kept.of(running)
    table[0] = BLOCKS[7]
    kept.of(running)
    assert (before.tolist(), grown.tolist()) == ([10, 20], [10, 20, 30])


def test_each_group_has_its_own_table_and_ended_sequences_are_dropped():
    kept = BlockIds()
    lasting = Running(tables=[[BLOCKS[1]], [BLOCKS[2], BLOCKS[3]]], rank=0)
    assert ids(kept, lasting) == [[10], [20, 30]]
    for number in range(500):
        brief = Running(tables=[[BLOCKS[number % 9]]], rank=number)
        assert ids(kept, brief) == [[number % 9 * 10]]
        brief.rank = -1
    assert len(kept) < 150
    assert ids(kept, lasting) == [[10], [20, 30]]
