"""Whose turn is next in a fleet."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.units import NEVER_PS
from sim.turns import Turns


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 8), st.sampled_from((0, 1, 2, 5, NEVER_PS))), max_size=40))
def test_the_earliest_of_all_is_first_and_of_equals_the_lower_number(
    num_replicas: int, changes: list[tuple[int, int]]
) -> None:
    turns, listed = Turns(num_replicas), [NEVER_PS] * num_replicas
    assert turns.first_ps == NEVER_PS
    for number, turn_ps in changes:
        number %= num_replicas
        turns.note(number, turn_ps)
        listed[number] = turn_ps
        assert turns.first_ps == min(listed)
        if turns.first_ps < NEVER_PS:
            assert turns.first == listed.index(min(listed))
