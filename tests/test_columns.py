"""What a run leaves behind as columns: times, counts, waiting requests and gaps, on runs checked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from world import Bench, Run, Settings, simulate, trace_of

from core.columns import NO_COUNT, gap_arrays, request_arrays, step_arrays
from core.metrics import RequestColumns
from core.recorder import Recorder
from core.request_log import RequestLog
from core.units import PS_PER_S
from kvtwin.store import STEP_COLUMNS
from sim.linear_cost import LinearCost
from sim.recorded_cost import RecordedCost

MS = PS_PER_S // 1000


def test_a_span_is_expanded_to_its_steps() -> None:
    """One request of 5 + 4 tokens: a prefill step, then one plan of three decode steps, each a little longer."""
    run = simulate(
        trace_of([0.5], [5], [4]), Settings(4, block_size=4, caching=False), LinearCost(0.1, context_token_s=0.01)
    )
    steps = run.step_arrays()
    assert (run.num_steps, run.num_plans) == (4, 2)
    np.testing.assert_allclose(steps["start_s"], [0.5, 0.6, 0.76, 0.93])
    np.testing.assert_allclose(steps["duration_s"], [0.1, 0.16, 0.17, 0.18])
    assert steps["decode_context_tokens"].tolist() == [0, 6, 7, 8]
    assert steps["num_prefill_tokens"].tolist() == [5, 0, 0, 0]
    assert steps["num_decode_seqs"].tolist() == [0, 1, 1, 1]
    assert steps["num_running"].tolist() == [1, 1, 1, 1]
    assert steps["num_referenced_blocks"].tolist() == [2, 2, 2, 2]
    assert steps["num_free_blocks"].tolist() == [2, 2, 2, 2]
    assert steps["num_referenced_blocks_after"].tolist() == [2, 2, 2, 0], "the request frees its blocks when it ends"
    assert run.gaps_s() == [0.16, 0.17, 0.18]
    assert set(STEP_COLUMNS) <= set(steps)


def test_requests_become_rows_by_their_number() -> None:
    run = simulate(trace_of([0, 0, 1], [5, 90, 6], [4, 1, 1]), Settings(4, block_size=4))
    rows = run.request_arrays()
    assert rows["request_id"].tolist() == [0, 1, 2]
    assert rows["outcome_names"][rows["outcome"]].tolist() == ["finished", "rejected", "finished"]
    assert rows["arrival_s"].tolist() == [0, 0, 1]
    np.testing.assert_equal(rows["first_token_s"], [1, np.nan, 2])
    np.testing.assert_equal(rows["finish_s"], [4, 0, 2])
    assert rows["num_output_tokens"].tolist() == [4, 0, 1]
    assert rows["num_prefill_tokens"].tolist() == [5, 0, 6]
    assert rows["num_cached_tokens"].tolist() == [0, 0, 0], "never admitted is no hit, not -1"
    RequestColumns.of(rows)


def test_what_has_not_ended_or_not_arrived_is_unfinished() -> None:
    bench = Bench(Settings(8, block_size=4))
    bench.add(5, 9)
    bench.steps(3)
    rows = Run(bench.scheduler, 3).request_arrays()
    assert rows["outcome_names"][rows["outcome"]].tolist() == ["unfinished"] * 3
    assert rows["num_output_tokens"].tolist() == [3, 0, 0]
    np.testing.assert_equal(rows["arrival_s"], [0, np.nan, np.nan])
    np.testing.assert_equal(rows["finish_s"], [np.nan] * 3)


def test_waiting_requests_are_counted_at_every_step_of_a_span() -> None:
    """One slot. Request 0 decodes in one span; 1 and 2 arrive in its midst, on a step boundary and after one."""
    trace = trace_of([0, 3, 3.5], [4, 4, 4], [6, 1, 1])
    run = simulate(trace, Settings(8, block_size=4, max_num_seqs=1))
    assert run.num_plans == 4, "arrivals that cannot be admitted do not cut the span"
    assert run.step_arrays()["num_waiting"].tolist() == [0, 0, 0, 1, 2, 2, 1, 0]
    assert run.step_arrays()["num_running"].tolist() == [1] * 8


def test_an_unbounded_pool_has_no_number_of_free_blocks() -> None:
    steps = simulate(trace_of([0], [5], [2]), Settings(None, block_size=4)).step_arrays()
    assert steps["num_free_blocks"].tolist() == [NO_COUNT, NO_COUNT]


def test_a_run_without_steps_has_empty_columns() -> None:
    recorder = Recorder()
    assert all(len(column) == 0 for column in step_arrays(recorder, RequestLog(), 4).values())
    assert all(len(column) == 0 for column in gap_arrays(recorder).values())
    assert len(request_arrays(RequestLog(), 0)["arrival_s"]) == 0


def test_latency_under_preemption() -> None:
    """Scenario 40: tokens visible at 100, 110, 120, (preempted), 420, 430 ms.

    Five blocks of 4. After 120 ms request 0 has 10 tokens in three of them, and 1 needs a third for its ninth token: as
    the last of the running requests it gives up its own, and waits until 0 ends at 390 ms.
    """
    durations_ms = [100, 10, 10, 100, 100, 50, 20, 30, 10]
    trace = trace_of([0, 0], [8, 6], [7, 5])
    run = simulate(trace, Settings(5, block_size=4, caching=False), RecordedCost([ms * MS for ms in durations_ms]))
    victim = run.request(1)
    assert (victim.num_preemptions, victim.num_produced_tokens) == (1, 5)
    assert [victim.first_token_ps // MS, victim.finish_ps // MS] == [100, 430]
    columns = RequestColumns.of(run.request_arrays())
    assert columns.ttft_s()[1] == 0.1, "not overwritten by the second prefill"
    assert columns.tpot_s()[1] == pytest.approx(0.0825)
    assert columns.e2e_s()[1] == 0.43
    assert columns.num_output_tokens[1] == 5, "recomputed tokens are no output"
    gaps_of_request_0 = [0.01, 0.01, 0.1, 0.1, 0.05, 0.02]
    assert run.gaps_s() == sorted([0.01, 0.01, 0.3, 0.01, *gaps_of_request_0])
