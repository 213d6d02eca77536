"""The figures of a run against values worked out by hand, and percentiles against numpy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from synthetic_runs import gaps_of, request_arrays, step_arrays, totals_of

from core.metrics import Records, RequestColumns, Slo, compute_metrics
from core.percentiles import summarize

FINISHED, REJECTED, CANCELLED, UNFINISHED = range(4)
NO_TOKENS: dict[str, int] = {}


def records(requests, steps=None, gaps=((), ()), num_blocks=20, tokens=NO_TOKENS, **options) -> Records:
    return Records(
        requests=RequestColumns.of(requests),
        steps=[totals_of(steps or step_arrays([], []), **tokens)],
        gaps=[gaps_of(*gaps)],
        num_blocks=num_blocks,
        block_size_tokens=16,
        has_prefix_information=options.pop("has_prefix_information", True),
        **options,
    )


def test_a_mean_of_many_does_not_depend_on_the_number_of_threads() -> None:
    values = np.random.default_rng(1).exponential(1, 20_000)
    assert summarize(values)["mean"] == float.fromhex("0x1.feb7d07ad22aap-1") == math.fsum(values) / 20_000


def test_what_is_not_defined_has_no_percentile():
    assert summarize(np.array([np.nan])) == {
        "mean": None, "p50": None, "p90": None, "p95": None, "p99": None, "max": None, "n": 0
    }  # fmt: skip


def test_scenario_40_latency_under_preemption():
    """Tokens at 100, 110, 120, (preempted), 420, 430 ms, arrival 0: the wait is a gap, not a second first token."""
    requests = request_arrays(
        [0.0],
        first_scheduled_s=[0.05],
        first_token_s=[0.100],
        finish_s=[0.430],
        num_prompt_tokens=[64],
        num_output_tokens=[5],
        num_preemptions=[1],
        num_recomputed_tokens=[66],
    )
    metrics = compute_metrics(records(requests, gaps=([0.010, 0.300], [3, 1])))

    assert metrics["ttft_s"]["p50"] == pytest.approx(0.100, abs=1e-15)
    assert metrics["itl_s"] == pytest.approx(
        {"mean": 0.0825, "p50": 0.010, "p90": 0.213, "p95": 0.2565, "p99": 0.2913, "max": 0.300, "n": 4}
    )
    assert metrics["e2e_s"]["max"] == pytest.approx(0.100 + 0.330)
    assert metrics["tpot_s"]["mean"] == pytest.approx(0.0825)
    assert metrics["output_tokens"] == 5, "recomputed tokens are no output"
    assert metrics["recomputed_tokens"] == 66


def test_scenario_42_usage_counts_referenced_blocks_and_residency_counts_the_cache():
    """100 usable blocks: 25 referenced, 50 cached; after the drain usage is 0 with the cache kept."""
    steps = step_arrays(
        [0.0],
        [1.0],
        num_referenced_blocks=[25],
        num_cached_blocks=[50],
        num_referenced_blocks_after=[0],
        num_cached_blocks_after=[75],
    )
    metrics = compute_metrics(records(request_arrays([0.0]), steps, num_blocks=100))
    assert metrics["kv_utilization_ratio"] == {"time_mean": 0.25, "peak": 0.25}
    assert metrics["kv_cached_ratio"] == {"time_mean": 0.50, "peak": 0.75}
    assert metrics["kv_utilization_ratio"]["peak"] + 0.50 == 0.75, "residency: referenced and cached"


def test_scenario_57_usage_is_weighted_by_time():
    """7, 11, 11 of 20 blocks over [0, 20], [20, 36], [36, 48] ms: 46.67 %."""
    blocks = [7, 11, 11]
    steps = step_arrays(
        [0.0, 0.020, 0.036],
        [0.020, 0.016, 0.012],
        num_referenced_blocks=blocks,
        num_referenced_blocks_after=[7, 11, 0],
    )
    requests = request_arrays(
        [0.0, 0.015],
        first_scheduled_s=[0.0, 0.020],
        first_token_s=[0.020, 0.036],
        finish_s=[0.048, 0.048],
        num_output_tokens=[3, 2],
    )
    metrics = compute_metrics(records(requests, steps, gaps=([0.016, 0.012], [1, 2])))
    assert metrics["kv_utilization_ratio"]["time_mean"] == pytest.approx(448 / 960)
    assert metrics["kv_utilization_ratio"]["peak"] == 0.55
    assert metrics["output_tokens_per_s"] == pytest.approx(104.1667, abs=1e-4)
    assert metrics["makespan_s"] == 0.048
    assert metrics["ttft_s"]["mean"] == pytest.approx(0.0205)
    assert metrics["tpot_s"]["mean"] == pytest.approx(0.013)


def test_idle_time_counts_with_what_the_pool_holds_then():
    """1 s at 10 of 20 blocks, 3 s idle with nothing referenced, 1 s at 10 blocks: 10·2 / (5·20)."""
    steps = step_arrays(
        [0.0, 4.0],
        [1.0, 1.0],
        num_referenced_blocks=[10, 10],
        num_cached_blocks=[0, 10],
        num_referenced_blocks_after=[0, 0],
        num_cached_blocks_after=[10, 20],
    )
    metrics = compute_metrics(records(request_arrays([0.0]), steps))
    assert metrics["kv_utilization_ratio"]["time_mean"] == pytest.approx(0.2)
    assert metrics["kv_cached_ratio"]["time_mean"] == pytest.approx((10 * 3 + 10 * 1) / (5 * 20))


def test_one_token_outputs_have_no_tpot_and_unfinished_requests_no_e2e():
    requests = request_arrays(
        [0.0, 0.0, 0.0],
        first_token_s=[1.0, 1.0, 1.0],
        finish_s=[1.0, 3.0, np.nan],
        num_output_tokens=[1, 3, 2],
        outcome=np.array([FINISHED, FINISHED, UNFINISHED], dtype=np.int8),
    )
    metrics = compute_metrics(records(requests))
    assert [metrics[name]["n"] for name in ("ttft_s", "tpot_s", "e2e_s")] == [3, 1, 2]
    assert metrics["tpot_s"]["mean"] == 1.0
    assert metrics["outcomes"] == {"finished": 2, "rejected": 0, "cancelled": 0, "unfinished": 1}


def test_prefix_hits_count_first_admissions_of_admitted_requests_only():
    requests = request_arrays(
        [0.0, 0.0, 0.0],
        first_scheduled_s=[0.0, 1.0, np.nan],
        finish_s=[2.0, 2.0, np.nan],
        num_prompt_tokens=[64, 64, 1000],
        num_cached_tokens=[0, 48, 0],
        num_readmission_cached_tokens=[48, 0, 0],
        outcome=np.array([FINISHED, FINISHED, REJECTED], dtype=np.int8),
    )
    metrics = compute_metrics(records(requests))
    assert (metrics["prefix_hit_tokens"], metrics["prompt_tokens"]) == (48, 128)
    assert metrics["prefix_hit_ratio"] == 0.375
    assert metrics["readmission_hit_tokens"] == 48
    undefined = compute_metrics(records(requests, has_prefix_information=False))
    assert undefined["prefix_hit_ratio"] is None, "a trace without prefixes has no hit ratio, not 0"


def test_goodput_counts_requests_that_meet_both_latencies():
    """Four due: one meets, one is slow to start, one slow to go on, one rejected; a cancelled one is not due."""
    requests = request_arrays(
        np.zeros(5),
        first_token_s=[1.0, 5.0, 1.0, np.nan, np.nan],
        finish_s=[2.0, 6.0, 10.0, np.nan, np.nan],
        num_output_tokens=[11, 11, 2, 0, 0],
        outcome=np.array([FINISHED, FINISHED, FINISHED, REJECTED, CANCELLED], dtype=np.int8),
    )
    metrics = compute_metrics(records(requests, slo=Slo(ttft_s=2.0, tpot_s=0.5)))
    assert metrics["goodput_rps"] == 0.1
    assert metrics["slo_attainment_ratio"] == 0.25
    assert metrics["requests_per_s"] == 0.3
    without = compute_metrics(records(requests))
    assert without["goodput_rps"] is None
    assert without["slo_attainment_ratio"] is None


def test_waste_of_one_request_of_17_tokens_in_two_blocks():
    steps = step_arrays([0.0], [1.0], num_referenced_blocks=[2])
    run = records(request_arrays([0.0]), steps, tokens={"num_filled_tokens": 17, "num_internal_tokens": 15})
    metrics = compute_metrics(run)
    assert metrics["waste_ratio"] == {"reserved": 0.0, "internal": 15 / 32, "external": 0.0}
    assert metrics["waste_total_ratio"] == {"time_mean": 15 / 32, "peak": 15 / 32}
    assert metrics["pool_share_ratio"]["token"] == 17 / 320
    assert metrics["saturated_num_running"] is None, "nobody counted who waited"
    without = compute_metrics(records(request_arrays([0.0])))
    assert without["waste_ratio"]["internal"] is None, "no step, no waste"


def test_a_run_in_which_nothing_happened_has_no_rates():
    metrics = compute_metrics(records(request_arrays([0.0, 1.0]), num_blocks=None))
    assert metrics["output_tokens_per_s"] is None
    assert metrics["makespan_s"] is None
    assert metrics["kv_utilization_ratio"] == {"time_mean": None, "peak": None}
    assert metrics["e2e_s"]["n"] == 0
