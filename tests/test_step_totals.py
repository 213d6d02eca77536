"""What the steps of a run add up to, and its gaps: in closed form, and cut up as they come, as counted step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from synthetic_runs import step_arrays, totals_of
from workloads import Workload, workloads
from world import simulate

from core import gap_spans as gap_spans_module
from core.columns import StepTimes, gap_arrays
from core.columns import step_arrays as step_arrays_of
from core.condenser import Condenser
from core.even_plans import even_plans
from core.gap_spans import GapSpans, summarize_spans
from core.packing import exact_dot, narrowed
from core.percentiles import PERCENTILES
from core.recorder import UNEVEN, Recorder
from core.step_totals import Level, StepTotals
from core.units import PS_PER_S

Rows = list[int]


class Counted:
    """The same totals from columns with a row a step, in Python's own whole numbers."""

    def __init__(self, columns: Mapping[str, Any], block_size: int) -> None:
        times_ps = {name: np.round(columns[name] * PS_PER_S) for name in ("start_s", "duration_s")}
        self._rows = {name: list(map(int, column)) for name, column in (dict(columns) | times_ps).items()}
        self._block_size = block_size
        self._all = list(range(len(self._rows["start_s"])))

    def totals(self) -> dict[str, Any]:
        first_late = next((row for row in self._all if self["num_evictions"][row]), None)
        start_s, duration_s = self["start_s"], self["duration_s"]
        return {
            "start_ps": start_s[0] if self._all else None,
            "end_ps": start_s[-1] + duration_s[-1] if self._all else 0,
            "referenced": self._level("num_referenced_blocks", self._all),
            "cached": self._level("num_cached_blocks", self._all),
            "orphans": self._level("num_orphan_blocks", self._all),
            "late_cached": None if first_late is None else self._level("num_cached_blocks", self._all[first_late:]),
            "load": self._load(self._all),
            "saturated": self._load([row for row in self._all if self["num_waiting"][row]]) if self._all else None,
            "peak_waste_ratio": self._peak(),
        }

    def __getitem__(self, name: str) -> list[int]:
        return self._rows[name]

    def _level(self, name: str, rows: Rows) -> dict[str, int | None]:
        start_s, duration_s, after = self["start_s"], self["duration_s"], self[f"{name}_after"]
        idle = {row: start_s[row + 1] - start_s[row] - duration_s[row] for row in rows[:-1]}
        held = [(self[name][row], duration_s[row]) for row in rows]
        held += [(after[row], idle.get(row, 0)) for row in rows]
        counts = [count for count, _ in held]
        return {
            "block_ps": sum(count * time_ps for count, time_ps in held),
            "span_ps": sum(time_ps for _, time_ps in held),
            "least": min(counts, default=None),
            "most": max(counts, default=None),
        }

    def _load(self, rows: Rows) -> dict[str, int]:
        def over_time(name: str) -> int:
            return sum(self[name][row] * self["duration_s"][row] for row in rows)

        internal, referenced = over_time("num_internal_tokens"), over_time("num_referenced_blocks")
        return {
            "busy_ps": sum(self["duration_s"][row] for row in rows),
            "running": over_time("num_running"),
            "referenced_blocks": referenced,
            "shared_references": over_time("num_shared_references"),
            "filled_tokens": referenced * self._block_size - internal - over_time("num_reserved_tokens"),
            "internal_tokens": internal,
            "external_tokens": over_time("num_external_tokens"),
        }

    def _peak(self) -> float | None:
        kinds = ("num_reserved_tokens", "num_internal_tokens", "num_external_tokens")
        wasted = [sum(self[kind][row] for kind in kinds) for row in self._all]
        taken = [
            self["num_referenced_blocks"][row] * self._block_size + self["num_external_tokens"][row]
            for row in self._all
        ]
        return max((part / whole for part, whole in zip(wasted, taken, strict=True) if whole), default=None)


def numpys(gap_s: np.ndarray) -> dict[str, float | None]:
    """Percentiles of all gaps."""
    if not gap_s.size:
        return dict.fromkeys([*(f"p{percentile}" for percentile in PERCENTILES), "max"]) | {"n": 0}
    found = np.percentile(gap_s, PERCENTILES).tolist()
    return {f"p{percentile}": each for percentile, each in zip(PERCENTILES, found, strict=True)} | {
        "max": float(gap_s.max()),
        "n": gap_s.size,
    }


@settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate])
@given(workload=workloads())
def test_steps_and_gaps_are_told_as_if_counted_one_by_one(workload: Workload) -> None:
    given_to = workload.trace, workload.settings, workload.cost, workload.arrivals, workload.concurrency
    run = simulate(*given_to)
    often, seldom = Condenser(num_plans_at_once=1), Condenser()
    cut_up = simulate(*given_to, condenser=often).scheduler.recorder
    assert (cut_up.num_steps, cut_up.num_plans) == (run.num_steps, run.num_plans)
    expected = Counted(run.step_arrays(), run.scheduler.tables.block_size).totals()
    totals, gaps = run.step_totals(), gap_arrays(run.scheduler.recorder)
    told = {name: value for name, value in asdict(totals).items() if name in expected}
    assert told == expected

    totals.saturated = None  # under `steps=false` nobody counts who waits
    often_totals, spans = often.finish(cut_up)
    all_at_once, all_spans = seldom.finish(run.scheduler.recorder)
    assert often_totals == all_at_once == totals
    figures = summarize_spans(spans)
    assert figures == summarize_spans(all_spans), "to the last bit, however the run was cut up"
    gap_s = np.repeat(gaps["gap_s"], gaps["multiplicity"])
    assert figures == numpys(gap_s) | {"mean": figures["mean"]}
    assert figures["mean"] is None or figures["mean"] == pytest.approx(gap_s.mean(), rel=1e-12)


SMALL = st.integers(0, 3)
SELDOM = st.sampled_from([0, 0, 0, 0, 2])
STEPS = st.lists(st.tuples(st.integers(1, 9), *[SELDOM] * 5, st.booleans()), min_size=1, max_size=4)
PLANS = st.lists(st.tuples(STEPS, st.sampled_from([0, 0, 7]), st.booleans(), *[SMALL] * 7), min_size=1, max_size=6)


def record(recorder: Recorder, plans: list[Any], num_before_cut: int) -> None:
    """Writes made-up plans down, as a scheduler and its pool would: with pauses, listed durations and lost decodes."""
    ended_ps = started_ps = num_steps_begun = num_evictions = 0
    steps = (recorder.step_cached_blocks, recorder.step_orphan_blocks, recorder.step_shared_references)
    steps += (recorder.step_internal_tokens, recorder.step_external_tokens)
    for place, (drawn, pause_ps, is_even, filled, gaps, others, lost, referenced, cached, orphans) in enumerate(plans):
        first_ps, growth_ps = drawn[0][0], drawn[0][1]
        durations_ps = [first_ps + growth_ps * k if is_even else step[0] for k, step in enumerate(drawn)]
        if not is_even:
            first_ps, growth_ps = len(recorder.uneven_ps), UNEVEN
            recorder.uneven_ps.extend(durations_ps)
        for _, *counts, evicts in drawn:
            for series, count in zip(steps, counts, strict=True):
                series.note(num_steps_begun, count)
            num_evictions += evicts and place > 1
            recorder.step_evictions_before_end.note(num_steps_begun, num_evictions)
            recorder.step_referenced_blocks.note(num_steps_begun, counts[0] + 5)
            num_steps_begun += 1
        if place and min(lost, gaps):
            recorder.lost_decodes[place] = min(lost, gaps)
        start_ps, decodes = ended_ps + pause_ps, gaps + others
        row = (len(drawn), start_ps, first_ps, growth_ps, 0, decodes, 0, filled, gaps * (place > 0), 1, referenced)
        recorder.plans.new += row
        recorder.plan_decided_ps.append(started_ps if place else start_ps)
        recorder.cached_blocks_after.note(place, cached)
        recorder.orphan_blocks_after.note(place, orphans)
        ended_ps = start_ps + sum(durations_ps)
        started_ps = ended_ps - durations_ps[-1]
        if recorder.condenser is not None and place + 1 == num_before_cut:
            recorder.condenser.on_done(recorder)


class Comings:
    """Requests that arrive and are done at these times, and nothing else of them."""

    def __init__(self, comings: list[tuple[int, int]]) -> None:
        self._columns = {
            "arrival_ps": np.array([arrival_ps for arrival_ps, _ in comings], dtype=np.int64),
            "finish_ps": np.array([arrival_ps + stay_ps for arrival_ps, stay_ps in comings], dtype=np.int64),
        }

    def column(self, name: str) -> np.ndarray:
        return self._columns[name]


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    plans=PLANS,
    num_before_cut=st.integers(0, 5),
    decides_ahead=st.booleans(),
    comings=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=4),
)
def test_made_up_records_pause_and_are_cut_anywhere(
    plans: list[Any], num_before_cut: int, decides_ahead: bool, comings: list[tuple[int, int]]
) -> None:
    requests: Any = Comings([(0, 10**6), *comings])
    whole, cut = Recorder(), Recorder(Condenser(num_plans_at_once=0))
    for recorder in (whole, cut):
        recorder.decides_ahead, recorder.block_size, recorder.num_kv_groups = decides_ahead, 4, 2
        record(recorder, plans, num_before_cut)
    columns, gaps, totals = step_arrays_of(whole, requests, None), gap_arrays(whole), StepTotals()
    totals.add(even_plans(whole), whole, requests)
    expected = Counted(columns, block_size=4).totals()
    assert {name: value for name, value in asdict(totals).items() if name in expected} == expected

    assert cut.condenser is not None
    cut_totals, spans = cut.condenser.finish(cut)
    assert replace(totals, saturated=None) == cut_totals
    gap_s = np.repeat(gaps["gap_s"], gaps["multiplicity"])
    figures = summarize_spans(spans)
    assert figures == numpys(gap_s) | {"mean": figures["mean"]}
    num_lost = sum(whole.lost_decodes.values())
    assert figures["n"] == sum(len(steps) * gaps for steps, _, _, _, gaps, *_ in plans[1:]) - num_lost
    durations_ps = [
        step[0] if not is_even else steps[0][0] + steps[0][1] * k
        for steps, _, is_even, *_ in plans
        for k, step in enumerate(steps)
    ]
    assert StepTimes.of(whole).duration_ps.tolist() == durations_ps


def test_the_late_time_begins_with_the_step_that_evicts() -> None:
    """In the midst of a plan in which no count changes: the last of six steps of 1 ps."""
    plan = ([(1, 0, 0, 0, 0, 0, False), (1, 0, 0, 0, 0, 0, True)], 0, True, *[0] * 7)
    recorder, totals = Recorder(), StepTotals()
    record(recorder, [plan] * 3, num_before_cut=0)
    totals.add(even_plans(recorder), recorder)
    assert (totals.late_cached, totals.cached.span_ps) == (Level(0, 1, least=0, most=0), 6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    spans=st.lists(
        st.tuples(st.integers(1, 10**13), st.integers(0, 10**9), st.integers(1, 40), st.integers(1, 7)), min_size=1
    ),
    num_parts=st.integers(1, 3),
)
def test_percentiles_of_spans_are_numpys_of_all_gaps(spans: list[tuple[int, ...]], num_parts: int) -> None:
    parts = [GapSpans(*np.array(part).T).narrowed() for part in (spans[n::num_parts] for n in range(num_parts)) if part]
    gaps_ps = [
        first + growth * step
        for first, growth, num_steps, each in spans
        for step in range(num_steps)
        for _ in range(each)
    ]
    told = summarize_spans(parts)
    assert told == numpys(np.array(gaps_ps) / PS_PER_S) | {"mean": sum(gaps_ps) / (len(gaps_ps) * PS_PER_S)}
    with patch.object(gap_spans_module, "_MOST_EXPANDED", 5):
        assert summarize_spans(parts) == told, "found by halving"


def test_long_spans_of_about_equal_gaps_are_not_expanded() -> None:
    """Two billion gaps from 1 ms on, each a picosecond longer than the one before it, twice."""
    span = GapSpans(*map(np.array, ([10**9] * 2, [1] * 2, [2_000_000_000] * 2, [1] * 2)))
    told = summarize_spans([span.narrowed()])
    assert (told["n"], told["p50"], told["max"]) == (4_000_000_000, 1.9999999995e-3, 2.999999999e-3)


def test_a_billion_gaps_are_not_expanded() -> None:
    """990 million sequences wait 1 s, and 10 million and one wait 2 s."""
    spans = GapSpans(*map(np.array, ([10**12, 2 * 10**12], [0, 0], [1, 1], [990_000_000, 10_000_001])))
    told = summarize_spans([spans])
    assert (told["p50"], told["p99"], told["max"], told["n"]) == (1.0, 2.0, 2.0, 1_000_000_001)


def test_a_pool_idles_with_what_the_step_before_left_in_it() -> None:
    """4 blocks for 2 s, 1 of them for 6 more, 3 for 2 s: 20 over 10."""
    steps = step_arrays([0, 8], [2, 2], num_cached_blocks=[4, 3], num_cached_blocks_after=[1, 3])
    assert totals_of(steps).cached == Level(20 * PS_PER_S, 10 * PS_PER_S, least=1, most=4)


def test_blocks_times_picoseconds_go_beyond_64_bits() -> None:
    counts, times_ps = np.full(40_000, 2**31 - 1), np.full(40_000, 2**62 + 1)
    times_ps[0] = -3
    assert exact_dot(counts, times_ps) == (2**31 - 1) * (39_999 * (2**62 + 1) - 3)
    assert exact_dot(counts[1:], times_ps[1:]) == (2**31 - 1) * 39_999 * (2**62 + 1)
    assert exact_dot(counts[:3], times_ps[1:4]) == 3 * (2**31 - 1) * (2**62 + 1)


@pytest.mark.parametrize(("most", "width"), [(127, 1), (128, 2), (-(2**15) - 1, 4), (2**31, 8)])
def test_numbers_are_kept_as_narrow_as_they_fit(most: int, width: int) -> None:
    kept = narrowed(np.array([0, most]))
    assert (kept.itemsize, kept.tolist()) == (width, [0, most])


def test_a_run_may_end_just_when_its_gaps_were_joined():
    """Sixteen parts are joined to one; the sixteenth is what was left at the end."""
    condenser = Condenser(num_plans_at_once=0)
    recorder = Recorder(condenser)
    for _ in range(15):
        condenser.on_done(recorder)
    assert len(condenser.finish(recorder)[1]) == 1
