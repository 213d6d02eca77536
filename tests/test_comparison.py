"""Simulated against measured: values by hand, what is refused, and what is only reported."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from synthetic_runs import gaps_of, request_arrays, step_arrays, synthetic_run, totals_of

from core.errors import InputError
from core.metrics import Records, RequestColumns, compute_metrics
from kvtwin.agreement import (
    Ranked,
    is_within_spread,
    ks_distance,
    ranking_agreement,
    relative_error,
    relative_spread,
)
from kvtwin.comparison import Lockstep, compare_runs, is_saturated
from kvtwin.formatting import error_text, metric_label, metric_text
from kvtwin.store import write_run
from kvtwin.tables import comparison_table, print_tables, run_table, sweep_table


def run_of(path, kind, ttft_s, ids=None, num_blocks=100, num_cached=0):
    """A run of requests that arrive a second apart, with these TTFTs and three tokens 10 ms apart."""
    arrival_s = np.arange(len(ttft_s), dtype=np.float64)
    first_token_s = arrival_s + np.asarray(ttft_s)
    requests = request_arrays(
        arrival_s,
        request_id=np.arange(len(ttft_s)) if ids is None else ids,
        first_scheduled_s=arrival_s,
        first_token_s=first_token_s,
        finish_s=first_token_s + 0.020,
        num_prompt_tokens=np.full(len(ttft_s), 64),
        num_output_tokens=np.full(len(ttft_s), 3),
        num_cached_tokens=np.full(len(ttft_s), num_cached),
    )
    steps = step_arrays([0.0], [1.0])
    gaps = {"gap_s": np.array([0.010]), "multiplicity": np.array([2 * len(ttft_s)])}
    metrics = compute_metrics(
        Records(
            RequestColumns.of(requests),
            [totals_of(steps)],
            [gaps_of(**gaps)],
            num_blocks,
            16,
            True,
        )
    )
    pool = {"num_blocks": num_blocks, "block_size_tokens": 16, "bytes_per_token": 4, "bytes": num_blocks * 64}
    summary = {"kind": kind, "labels": {}, "trace": {"sha256": "abc"}, "pool": pool, "metrics": metrics}
    return write_run(path, summary, requests=requests, steps=steps, gaps=gaps)


def test_scenario_55_errors_of_three_paired_requests(tmp_path):
    sim = run_of(tmp_path / "sim", "sim", [0.100, 0.200, 0.400])
    real = run_of(tmp_path / "real", "engine", [0.110, 0.180, 0.500])
    comparison = compare_runs(sim, [real])

    ttft = comparison["per_request"]["ttft_s"]
    assert ttft["mape_ratio"] == pytest.approx(0.1340, abs=5e-5)
    assert ttft["bias_ratio"] == pytest.approx(-0.0599, abs=5e-5)
    assert ttft["p50_error_ratio"] == pytest.approx(1 / 9)
    assert ttft["n"] == 3
    assert comparison["metrics"]["ttft_s.p50"]["error_ratio"] == pytest.approx(0.111, abs=5e-4)
    assert comparison["metrics"]["ttft_s.p50"]["engine_spread_ratio"] is None, "one repeat has no spread"
    assert comparison["per_request"]["tpot_s"]["mape_ratio"] == pytest.approx(0.0, abs=1e-9)
    json.dumps(comparison, allow_nan=False)


def test_scenario_55_a_fourth_request_on_one_side_is_listed_not_filled(tmp_path):
    sim = run_of(tmp_path / "sim", "sim", [0.100, 0.200, 0.400], ids=[10, 11, 12])
    real = run_of(tmp_path / "real", "engine", [0.110, 9.000, 0.180, 0.500], ids=[10, 99, 11, 12])
    comparison = compare_runs(sim, [real])
    assert comparison["unmatched"] == {"simulated_only": [], "measured_only": [99]}
    assert comparison["per_request"]["ttft_s"]["n"] == 3
    assert comparison["per_request"]["ttft_s"]["mape_ratio"] == pytest.approx(0.1340, abs=5e-5)


def test_measured_is_the_median_of_the_repeats_and_spread_their_range(tmp_path):
    sim = run_of(tmp_path / "sim", "sim", [0.210])
    repeats = [run_of(tmp_path / f"real{ttft_s}", "engine", [ttft_s]) for ttft_s in (0.180, 0.200, 0.220)]
    comparison = compare_runs(sim, repeats)
    assert comparison["metrics"]["ttft_s.mean"] == pytest.approx(
        {"simulated": 0.210, "measured": 0.200, "error_ratio": 0.05, "engine_spread_ratio": 0.2}
    )
    assert comparison["per_request"]["ttft_s"]["bias_ratio"] == pytest.approx(0.05)
    assert comparison["per_request"]["ttft_s"]["ks_distance"] == pytest.approx(2 / 3)


def test_pools_of_different_size_and_other_traces_are_refused(tmp_path):
    sim = run_of(tmp_path / "sim", "sim", [0.1])
    larger = run_of(tmp_path / "larger", "engine", [0.1], num_blocks=131)
    with pytest.raises(InputError, match=r"pool\.num_blocks is 100 in .* but 131 in .*larger"):
        compare_runs(sim, [larger])
    other = run_of(tmp_path / "other", "engine", [0.1])
    other.summary["trace"]["sha256"] = "def"
    with pytest.raises(InputError, match=r"trace\.sha256"):
        compare_runs(sim, [other])
    with pytest.raises(InputError, match="at least one engine run"):
        compare_runs(sim, [])


def test_scenario_53_a_warm_repeat_is_named(tmp_path):
    """Unique prompts hit nothing; a repeat that does ran into the first one's cache."""
    sim = run_of(tmp_path / "sim", "sim", [0.1])
    cold, clean = (run_of(tmp_path / name, "engine", [0.1]) for name in ("cold", "clean"))
    warm = run_of(tmp_path / "warm", "engine", [0.05], num_cached=48)
    assert compare_runs(sim, [cold, clean])["warm_repeats"]["repeats"] == []
    assert compare_runs(sim, [cold, warm])["warm_repeats"]["repeats"] == [1]


def test_lockstep_is_reported_as_given(tmp_path):
    sim, real = (run_of(tmp_path / kind, kind, [0.1]) for kind in ("sim", "engine"))
    assert compare_runs(sim, [real])["lockstep"] is None
    same = compare_runs(sim, [real], Lockstep(num_decisions=7))
    assert same["lockstep"] == {"identical": True, "num_decisions": 7}
    differs = compare_runs(sim, [real], Lockstep(7, "step 3: evict block 4, engine evicts block 9"))
    assert differs["lockstep"]["identical"] is False
    assert differs["first_difference"].startswith("step 3")


def test_a_queue_that_grows_is_labelled_saturated():
    arrival_s = np.arange(60, dtype=np.float64)

    def with_wait(wait_s):
        return RequestColumns.of(
            request_arrays(arrival_s, first_scheduled_s=arrival_s + wait_s, finish_s=arrival_s + 99)
        )

    assert is_saturated(with_wait(arrival_s * 0.5)) is True
    assert is_saturated(with_wait(np.full(60, 5.0))) is False, "a long queue that does not grow"
    assert is_saturated(with_wait(arrival_s * 0.01)) is False, "a queue that grows but hardly exists"
    assert is_saturated(RequestColumns.of(request_arrays(np.zeros(9), first_scheduled_s=np.arange(9.0)))) is None


def ranked(*figures):
    """(name, simulated, measured), each with a spread of a tenth between repeats on the engine."""
    return [Ranked(*each, 0.1) for each in figures]


def test_ranking_agreement_of_policies():
    alike = ranking_agreement(ranked(("lru", 1.0, 1.2), ("sieve", 0.8, 0.9), ("fifo", 2.0, 1.9)))
    assert alike["kendall_tau"] == 1.0
    assert alike["best_simulated"] == alike["best_measured"] == ["sieve"]
    assert alike["best_agrees"]
    swapped = ranking_agreement(ranked(("lru", 1.0, 0.9), ("sieve", 0.8, 1.2), ("fifo", 2.0, 1.9)))
    assert swapped["kendall_tau"] == pytest.approx(1 / 3)
    assert not swapped["best_agrees"]
    assert ranking_agreement(ranked(("a", 1.0, 1.0), ("b", 2.0, 2.0)), best=max)["best_measured"] == ["b"]
    assert ranking_agreement(ranked(("a", 1.0, 1.0), ("b", 1.0, 2.0)))["kendall_tau"] is None
    with pytest.raises(InputError, match="two configurations"):
        ranking_agreement(ranked(("a", 1.0, 1.0)))


def test_only_what_the_engine_itself_tells_apart_counts_against_the_simulator():
    figures = ("lru", 1.0, 0.98), ("sieve", 0.9, 1.0), ("fifo", 2.0, 1.9)  # lru and sieve: within a tenth of each other
    close = ranking_agreement(ranked(*figures))
    assert [close[f"num_{name}"] for name in ("pairs", "told_apart", "told_apart_alike")] == [3, 2, 2]
    assert not close["best_agrees"]
    assert ranking_agreement([Ranked(*each) for each in figures])["num_told_apart"] is None, "one repeat: no spread"


def test_small_statistics():
    assert relative_error(0.0, 0.0) == 0.0
    assert relative_error(3.0, 0.0) is None
    assert relative_spread([0, 0]) == 0.0
    assert [is_within_spread(-0.02, spread) for spread in (0.02, 0.01, None)] == [True, False, False]
    assert ks_distance(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == 1.0
    assert ks_distance(np.array([1.0, np.nan]), np.array([1.0])) == 0.0
    assert ks_distance(np.array([np.nan]), np.array([1.0])) is None


def test_a_metrics_name_decides_its_unit():
    assert metric_text("ttft_s.p50", 0.0123) == "12.3 ms"
    assert metric_text("ttft_s.p50", 1.5) == "1.50 s"
    assert metric_text("output_tokens_per_s", 1234.5) == "1,234 tok/s"
    assert metric_text("prefix_hit_ratio", None) == "–"
    assert metric_text("swapped_bytes", 1_500_000) == "1.50 MB"
    assert metric_text("num_preemptions", 12.5) == "12.5"
    assert metric_label("kv_utilization_ratio.time_mean") == "KV use, mean"
    assert [error_text(value) for value in (-0.0599, 0.0, None)] == ["−6.0 %", "0.0 %", "–"]


def test_tables_are_plain_in_a_pipe_and_name_what_varies(tmp_path):
    sim = synthetic_run(tmp_path / "sim", "sim", seed=1)
    real = synthetic_run(tmp_path / "real", "engine", seed=2)
    other = json.loads(json.dumps(sim.summary))
    other["labels"]["eviction"] = "fifo"
    out = io.StringIO()
    print_tables(
        run_table({**sim.summary, "interrupted": True}),
        sweep_table([sim.summary, other]),
        comparison_table(compare_runs(sim, [real])),
        file=out,
    )
    text = out.getvalue()
    assert "\x1b" not in text
    assert "interrupted" in text
    (header,) = (line for line in text.splitlines() if "eviction" in line)
    assert "trace" not in header, "a label that all jobs share is no column"
    assert "engine's spread" in text
    assert "TTFT p90" in text
