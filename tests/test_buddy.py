"""Where runs are placed: the buddy system, first and best fit, and compaction, by hand and at random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.interfaces import Run
from policies.allocation.buddy import Buddy
from policies.allocation.free_extents import BestFit, FirstFit

# ---- the buddy system -----------------------------------------------------------------------------------------------


def test_a_run_is_split_in_halves_and_merged_again() -> None:
    """16 blocks: 3 take a run of 4 from the halves 8 + 4 + 4; once all is back, 16 is one run again."""
    buddy = Buddy(16)
    three = buddy.place(3)
    assert three == Run(0, 4)
    assert buddy.free_runs == [Run(4, 4), Run(8, 8)]
    assert buddy.place(8) == Run(8, 8)
    one = buddy.place(1)
    assert one == Run(4, 1)
    assert buddy.free_runs == [Run(5, 1), Run(6, 2)]
    assert buddy.num_free == 3
    for run in (three, Run(8, 8), one):
        buddy.free(run)
    assert buddy.free_runs == [Run(0, 16)]


def test_neighbours_that_are_no_buddies_do_not_merge() -> None:
    """2..3 and 4..5 touch, but the run of 4 around them would not begin at a multiple of 4."""
    buddy = Buddy(8)
    runs = [buddy.place(2) for _ in range(4)]
    buddy.free(runs[1])  # type: ignore[arg-type]
    buddy.free(runs[2])  # type: ignore[arg-type]
    assert buddy.free_runs == [Run(2, 2), Run(4, 2)]
    assert not buddy.can_place(4)
    assert buddy.num_free == 4, "enough in all: external fragmentation"


def test_a_pool_that_is_no_power_of_two_begins_as_several_runs() -> None:
    """OPT-13B in 12 GiB: 983 blocks of 16, of which 2,048 slots are 128: seven runs, 1,392 slots (8.85 %) remain."""
    buddy = Buddy(983)
    assert [run.num_blocks for run in buddy.free_runs] == [512, 256, 128, 64, 16, 4, 2, 1]
    runs = [buddy.place(128) for _ in range(8)]
    assert [run is not None for run in runs] == [True] * 7 + [False]
    assert buddy.num_free * 16 == 1392
    assert buddy.num_free * 16 / 15_728 == pytest.approx(0.0885, abs=5e-5)


def test_rounding_up_leaves_a_quarter_unused_on_average() -> None:
    """Of runs of every size between two powers of two, three quarters are asked for (Knuth, TAOCP 2.5)."""
    asked = range(513, 1025)
    shares = [size / run.num_blocks for size in asked if (run := Buddy(1024).place(size))]
    assert sum(shares) / len(shares) == pytest.approx(0.75, abs=0.001)


# ---- first and best fit ---------------------------------------------------------------------------------------------


def scenario_4(holes: FirstFit) -> None:
    """Ten cells: A takes 4, B 3, C 3; then A and C go."""
    runs = [holes.place(size) for size in (4, 3, 3)]
    assert runs == [Run(0, 4), Run(4, 3), Run(7, 3)]
    holes.free(Run(0, 4))
    holes.free(Run(7, 3))


@pytest.mark.parametrize("kind", [FirstFit, BestFit])
def test_4_seven_free_cells_in_two_holes_do_not_hold_five(kind: type[FirstFit]) -> None:
    holes = kind(10)
    scenario_4(holes)
    assert (holes.num_free, max(run.num_blocks for run in holes.free_runs)) == (7, 4)
    assert not holes.can_place(5)
    assert holes.place(5) is None
    assert holes.free_runs == [Run(0, 4), Run(7, 3)], "a refusal changes nothing"


def test_4_compaction_moves_exactly_the_three_cells_between_them() -> None:
    holes = FirstFit(10)
    scenario_4(holes)
    assert holes.compact(5, [Run(4, 3)]) == [(Run(4, 3), 0)]
    assert holes.place(5) == Run(3, 5)
    assert holes.free_runs == [Run(8, 2)]


def test_compaction_moves_as_few_as_it_can() -> None:
    """Holes of 2, 2, 3 and 2 with runs of 5, 4 and 1 between them: the last two are joined for 4, moving one."""
    holes = FirstFit(19)
    sizes = [2, 5, 2, 4, 3, 1, 2]
    runs = [run for size in sizes if (run := holes.place(size))]
    for run in runs[::2]:
        holes.free(run)
    assert holes.compact(4, runs[1::2]) == [(Run(16, 1), 13)]
    assert holes.free_runs == [Run(0, 2), Run(7, 2), Run(14, 5)]


def test_best_fit_takes_the_shortest_hole_first_fit_the_lowest() -> None:
    for kind, start in ((FirstFit, 0), (BestFit, 7)):
        holes = kind(10)
        scenario_4(holes)
        assert holes.place(3) == Run(start, 3)


def test_holes_that_touch_become_one() -> None:
    holes = FirstFit(12)
    runs = [run for size in (3, 3, 3, 3) if (run := holes.place(size))]
    for run in (runs[0], runs[2], runs[1]):
        holes.free(run)
    assert holes.free_runs == [Run(0, 9)]


# ---- at random ------------------------------------------------------------------------------------------------------

KINDS: list[Callable[[int], Any]] = [Buddy, FirstFit, BestFit]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    num_blocks=st.integers(1, 70),
    wishes=st.lists(st.tuples(st.booleans(), st.integers(1, 24)), max_size=60),
)
def test_runs_in_use_and_free_ones_always_cover_the_pool_once(
    kind: Callable[[int], Any], num_blocks: int, wishes: list[tuple[bool, int]]
) -> None:
    """Against a bitmap: a run is given exactly where there is one, nothing is given twice, everything comes back."""
    holes, placed = kind(num_blocks), []
    at_first = holes.free_runs
    for is_release, number in wishes:
        if is_release and placed:
            holes.free(placed.pop(number % len(placed)))
        elif not is_release:
            could = holes.can_place(number)
            run = holes.place(number)
            assert could == (run is not None)
            placed += [run] if run else []
        covered = sorted([*placed, *holes.free_runs])
        ends = [run.start + run.num_blocks for run in covered]
        assert [run.start for run in covered] == [0, *ends[:-1]]
        assert ends[-1] == num_blocks
        assert holes.num_free == sum(run.num_blocks for run in holes.free_runs)
        if kind is Buddy:
            assert all(run.start % run.num_blocks == 0 for run in covered)
        if kind is FirstFit and holes.num_free and number <= holes.num_free and not holes.can_place(number):
            moved = dict(holes.compact(number, placed))
            placed = [run._replace(start=moved.get(run, run.start)) for run in placed]
            assert holes.can_place(number)
    for run in placed:
        holes.free(run)
    assert holes.free_runs == at_first
