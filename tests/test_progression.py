"""Spans of even growth: the steps that had begun by a time are found in closed form, and exactly."""

from hypothesis import given
from hypothesis import strategies as st

from core.progression import even_num_begun, even_total_ps


def test_steps_of_three_five_and_seven():
    totals = [even_total_ps(3, 2, num_steps) for num_steps in range(5)]
    assert totals == [0, 3, 8, 15, 24]
    begun = {elapsed_ps: even_num_begun(3, 2, elapsed_ps) for elapsed_ps in (0, 1, 3, 4, 8, 9, 15, 16)}
    assert begun == {0: 1, 1: 1, 3: 1, 4: 2, 8: 2, 9: 3, 15: 3, 16: 4}, "a step begins just after the one before ends"


def test_totals_are_whole_numbers_of_any_size():
    """Machine code multiplies short ones in the processor's words: around the bounds of that, and far beyond."""
    numbers = [bound + near for bound in (1 << 16, 1 << 30, 1 << 45, 1 << 80) for near in (-1, 0, 1)]
    for first_ps in numbers:
        for growth_ps in numbers:
            for num_steps in numbers:
                total_ps = num_steps * first_ps + growth_ps * (num_steps * (num_steps - 1) // 2)
                assert even_total_ps(first_ps, growth_ps, num_steps) == total_ps


@given(
    st.integers(1, 10**14),
    st.one_of(st.just(0), st.integers(1, 10**3), st.integers(1, 10**14)),
    st.integers(0, 10**18),
)
def test_the_last_step_begun_is_the_first_that_ends_no_earlier(first_ps, growth_ps, elapsed_ps):
    """Whatever the sizes: a day is 1e17 ps, beyond what a float tells apart."""
    num_begun = even_num_begun(first_ps, growth_ps, elapsed_ps)
    assert num_begun >= 1
    assert even_total_ps(first_ps, growth_ps, num_begun) >= elapsed_ps
    assert num_begun == 1 or even_total_ps(first_ps, growth_ps, num_begun - 1) < elapsed_ps
