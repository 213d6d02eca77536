"""Stacks of ids and columns of numbers, whose memory is not copied as they grow and shrink."""

from __future__ import annotations

from array import array

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from core.id_stack import IdStack
from core.int_column import IntColumn

MOVES = st.lists(st.tuples(st.sampled_from(("push", "push under", "pop")), st.integers(0, 90)), max_size=40)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MOVES)
def test_a_stack_is_a_list_whose_end_is_its_top(moves: list[tuple[str, int]]) -> None:
    stack = IdStack()
    listed: list[int] = []
    for number, (move, num_ids) in enumerate(moves):
        ids = array("q", range(100 * number, 100 * number + num_ids))
        if move == "push":
            stack.push(ids)
            listed += ids
        elif move == "push under":
            stack.push_under(ids)
            listed[:0] = ids
        elif num_ids <= len(listed):
            assert stack.pop(num_ids).tolist() == [listed.pop() for _ in range(num_ids)]
        assert stack.items().tolist() == listed
        assert stack.length == len(listed)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(("add", "pack", "read", "take")), st.integers(0, 9)), max_size=200))
def test_a_column_is_a_list_however_often_it_is_packed(moves: list[tuple[str, int]]) -> None:
    column = IntColumn()
    listed: list[int] = []
    for move, num in moves:
        if move == "add":
            column.new += range(-num, num)
            listed += range(-num, num)
        elif move == "pack":
            column.pack()
        elif move == "read":
            assert np.frombuffer(column.packed(), dtype=np.int64).tolist() == listed
        elif num <= len(listed):
            first = column.pop_first(num)
            assert np.frombuffer(first.packed(), dtype=np.int64).tolist() == listed[:num]
            assert len(first) == num
            del listed[:num]
        assert len(column) == len(listed)
    assert np.frombuffer(column.packed(), dtype=np.int64).tolist() == listed
