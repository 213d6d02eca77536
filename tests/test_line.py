"""Lines, in which some leave early, and the order of blocks by their scores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.block import Block
from core.line import Line
from core.priority_order import PriorityOrder

MOVES = st.lists(st.tuples(st.sampled_from(("join", "pop", "leave", "put back")), st.integers(0, 5)), max_size=150)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(MOVES)
def test_a_line_is_a_list_from_which_some_are_taken(moves: list[tuple[str, int]]) -> None:
    line: Line[int] = Line()
    listed: list[int] = []
    for move, item in moves:
        if move == "join" and item not in listed:
            line.append(item)
            listed.append(item)
        elif move == "leave" and item in listed:
            line.discard(item)
            listed.remove(item)
        elif move == "pop" and listed:
            assert line.pop() == listed.pop(0)
        elif move == "put back" and listed:
            line.put_back(line.pop())
        assert line.items() == listed
        assert line.length == len(listed)


def test_who_leaves_and_joins_again_and_again_takes_no_room() -> None:
    line: Line[int] = Line()
    line.append(0)
    for _ in range(10_000):
        line.append(1)
        line.discard(1)
    assert line.items() == [0]
    assert len(line._joined) < 200


def test_nobody_is_first_in_an_empty_line() -> None:
    line: Line[int] = Line()
    line.append(0)
    line.discard(0)
    with pytest.raises(IndexError):
        line.pop()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(("put", "discard", "pop")), st.integers(0, 9), st.integers(0, 3))))
def test_the_least_score_goes_first_and_of_equals_the_earlier(moves: list[tuple[str, int, int]]) -> None:
    order, blocks = PriorityOrder(), [Block(number) for number in range(10)]
    scores: dict[Block, Any] = {}  # in order of arrival
    for move, number, score in moves:
        block = blocks[number]
        if move == "put" and block not in scores:
            order.put([block], [score])
            scores[block] = score
        elif move == "discard" and block in scores:
            order.discard([block])
            del scores[block]
        elif move == "pop" and scores:
            assert order.pop() is min(scores, key=scores.__getitem__)
            scores.pop(min(scores, key=scores.__getitem__))
        assert order.blocks() == sorted(scores, key=scores.__getitem__)


def test_scores_that_nobody_has_any_more_are_forgotten() -> None:
    order, block = PriorityOrder(), Block(0)
    for score in range(10_000):
        order.put([block], [score])
        order.discard([block])
    assert len(order._heap) < 200
