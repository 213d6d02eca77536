"""The decision log: rows in order, one digest, and the place where two logs part."""

from __future__ import annotations

import hashlib
import tracemalloc
from array import array

import numpy as np
import pytest

from core.decision_log import EACH, NO_REQUEST, Decision, DecisionLog, Event, NoLog, first_difference
from core.digest_log import DigestLog
from core.interfaces import Block


def blocks(*ids: int) -> list[Block]:
    return [Block(block_id, key=f"k{block_id}") for block_id in ids]


def a_log(keep_keys: bool = False) -> DecisionLog:
    log = DecisionLog(keep_keys)
    log.count(Event.ADMIT, 7, 32)
    log.blocks(Event.TOUCH, 7, blocks(3, 4))
    log.blocks(Event.ALLOC, 7, [])
    log.step = 2
    log.blocks(Event.EVICT, NO_REQUEST, blocks(9))
    log.blocks_of(Event.ALLOC, [7, 8], blocks(9, 1))
    log.count(Event.FINISH, 7, 5)
    return log


ROWS = [
    [0, Event.ADMIT, 7, 32],
    [0, Event.TOUCH, 7, 3],
    [0, Event.TOUCH, 7, 4],
    [2, Event.EVICT, NO_REQUEST, 9],
    [2, Event.ALLOC, 7, 9],
    [2, Event.ALLOC, 8, 1],
    [2, Event.FINISH, 7, 5],
]


def test_rows_are_the_decisions_in_order() -> None:
    log = a_log()
    assert log.rows().tolist() == ROWS
    assert len(log) == len(ROWS)
    assert DecisionLog().rows().shape == (0, 4)


def sha256(numbers: list[list[int]] | list[int]) -> hashlib._Hash:
    return hashlib.sha256(np.array(numbers, dtype="<i8").tobytes())


def test_the_digest_is_that_of_the_runs_and_of_the_values() -> None:
    """Of rows until November 2026; a run of blocks costs a quarter in this form."""
    runs = [
        [0, Event.ADMIT, 7, 1],
        [0, Event.TOUCH, 7, 2],
        [2, Event.EVICT, NO_REQUEST, 1],
        [2, Event.ALLOC, 7, 1],
        [2, Event.ALLOC, 8, 1],
        [2, Event.FINISH, 7, 1],
    ]
    both = sha256(runs).digest() + sha256([row[3] for row in ROWS]).digest()
    expected = hashlib.sha256(both).hexdigest()
    assert a_log().digest() == expected
    other = a_log()
    other.count(Event.FINISH, 8, 1)
    assert other.digest() != expected


def test_how_blocks_came_together_does_not_matter() -> None:
    """One by one, for one request or for several: the same decisions have the same digest."""
    one_by_one = DecisionLog()
    for step, event, who, value in ROWS:
        one_by_one.step = step
        one_by_one.blocks(Event(event), who, blocks(value)) if value < 32 else one_by_one.count(
            Event(event), who, value
        )
    assert one_by_one.digest() == a_log().digest()


def test_keys_go_along_with_the_rows_when_asked_for() -> None:
    assert a_log(keep_keys=True).keys() == [None, "k3", "k4", "k9", "k9", "k1", None]
    with pytest.raises(ValueError, match="keep_keys"):
        a_log().keys()


def test_a_log_can_be_read_while_it_grows() -> None:
    log = a_log()
    before = log.rows()
    log.count(Event.CANCEL, 8, 0)
    assert len(log.rows()) == len(before) + 1
    assert before.tolist() == ROWS


def test_off_means_nothing_is_kept() -> None:
    log = NoLog()
    log.count(Event.ADMIT, 0, 0)
    log.blocks(Event.ALLOC, 0, blocks(1))
    log.blocks_of(Event.ALLOC, [0], blocks(1))
    assert (len(log), log.rows().shape) == (0, (0, 4))


def test_the_first_difference_comes_with_what_surrounds_it() -> None:
    left = a_log().rows()
    right = left.copy()
    right[4, 3] = 6
    right[6, 3] = 99
    difference = first_difference(left, right, context=1)
    assert difference is not None
    assert difference.position == 4
    assert difference.left == [
        Decision(2, Event.EVICT, -1, 9),
        Decision(2, Event.ALLOC, 7, 9),
        Decision(2, Event.ALLOC, 8, 1),
    ]
    told = str(difference)
    assert "first difference at decision 4" in told
    assert "step 2: alloc request 7 9" in told
    assert "step 2: alloc request 7 6" in told
    assert "step 2: evict 9" in told, "an eviction is nobody's"


def test_equal_logs_have_none_and_a_shorter_one_ends_in_it() -> None:
    rows = a_log().rows()
    assert first_difference(rows, rows.copy()) is None
    shorter = first_difference(rows, rows[:5])
    assert shorter is not None
    assert (shorter.position, len(shorter.right)) == (5, 3)


def test_a_digest_log_says_the_same_and_keeps_nothing() -> None:
    """Whatever the piece in which decisions are taken in."""
    kept, digested = DecisionLog(), DigestLog(num_integers_at_once=3, num_heads_at_once=9)
    for log in (kept, digested):
        for step in range(20):
            log.step = step
            log.count(Event.ADMIT, step, 0)
            log.blocks(Event.ALLOC, step, [Block(number) for number in range(step % 5)])
            log.blocks_of(Event.ALLOC, [step, step + 1], [Block(7), Block(9)])
            log.ids(Event.TOUCH, step, array("q", range(50 * (step % 5) + 1)))
            log.heads += (step, Event.ALLOC, EACH, 2)
            log.values.fromlist([3, 4])
            log.owners += (step, step + 1)
            log.have_grown()
    assert (len(digested), digested.digest()) == (len(kept), kept.digest())
    assert len(digested.values) == 0
    assert digested.digest() == kept.digest(), "asked twice, it says it twice"
    with pytest.raises(ValueError, match="digest"):
        digested.rows()


def test_a_digest_log_takes_less_than_a_megabyte_however_long_the_run() -> None:
    """These decisions would be 1.6 MB, packed."""
    tracemalloc.start()
    log = DigestLog()
    for step in range(40_000):
        log.count(Event.ADMIT, step, 0)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log) == 40_000
    assert num_bytes < 1_000_000
