"""Fits: a recipe learnt from a trace makes traces with its statistics."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from traces.fit import Fit, Residual, compare, fit, not_learnt
from traces.fitting.arrival_fit import clock_quantum_s
from traces.fitting.prefix_forest import prefix_forest
from traces.fitting.ranks import rank_correlation
from traces.fitting.tables import table
from traces.generate import generate
from traces.generators.reuse import Candidates
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.recipe import load_recipe
from traces.samples import SAMPLE_NAMES, sample_path
from traces.schema import Trace

SHARED = Path(__file__).parents[1].parent / "shared" / "traces"
AZURE_CONV = "azure/AzureLLMInferenceTrace_conv.csv"
AZURE_CODE = "azure/AzureLLMInferenceTrace_code.csv"
MOONCAKE = "mooncake/conversation_trace.jsonl"
MOONCAKE_SYNTHETIC = "mooncake/synthetic_trace.jsonl"
needs_public_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="no public traces beside this checkout")
LENGTHS = [f"{what}_tokens_p{at}" for what in ("prompt", "output") for at in (50, 90, 99)]


def errors(residuals: list[Residual]) -> dict[str, float]:
    """Relative errors; plain differences of hit ratios."""
    return {
        statistic: recipe - trace if "hit_ratio" in statistic else recipe / trace - 1
        for statistic, trace, recipe in residuals
        if trace
    }


@cache
def public(file: str) -> tuple[Trace, Fit]:
    """A public trace and its fit."""
    trace = read_trace(SHARED / file)
    return trace, fit(trace)


@needs_public_traces
@pytest.mark.parametrize("file", [AZURE_CONV, MOONCAKE])
def test_the_bounds_of_the_issue_hold_with_either_seed(file):
    trace, (recipe, residuals) = public(file)
    for found in (residuals, compare(trace, generate(recipe, seed=12345))):
        error = errors(found)
        assert max(abs(error[name]) for name in LENGTHS) < 0.05
        assert abs(error["arrival_cv"]) < 0.10
        assert abs(error["rate_rps"]) < 0.02
        if trace.has_prefix_information:
            assert abs(error["infinite_cache_hit_ratio"]) < 0.02
            assert max(abs(value) for name, value in error.items() if name.startswith("lru_hit_ratio")) < 0.02
            assert len([name for name in error if name.startswith("lru_hit_ratio")]) == 3
        else:
            assert not any("hit" in name for name in error)  # undefined, not 0


@needs_public_traces
def test_the_very_bursty_trace_keeps_its_variation():
    error = errors(fit(read_trace(SHARED / AZURE_CODE)).residuals)
    assert abs(error["arrival_cv"]) < 0.10  # of 13.2
    assert max(abs(error[name]) for name in LENGTHS) < 0.05


@needs_public_traces
def test_a_trace_of_two_populations_is_met_less_well():
    # Prompts that repeat an earlier one are far longer than the others: the median lies between, where few are.
    error = errors(fit(read_trace(SHARED / MOONCAKE_SYNTHETIC)).residuals)
    assert abs(error.pop("prompt_tokens_p50")) < 0.10
    assert max(abs(error[name]) for name in LENGTHS if name in error) < 0.05
    assert abs(error["infinite_cache_hit_ratio"]) < 0.01


@needs_public_traces
@pytest.mark.parametrize(("name", "file"), [("azure_conv_like", AZURE_CONV), ("mooncake_conversation_like", MOONCAKE)])
def test_recipes_that_come_along_are_the_fits_of_the_public_traces(name, file):
    shipped = load_recipe(name)[0]
    trace, (fitted, _) = public(file)
    for key in fitted.keys() - {"name", "licence", "fit"}:
        assert shipped[key] == fitted[key], key
    assert shipped["fit"]["sha256"] == trace.sha256


@pytest.mark.parametrize("name", SAMPLE_NAMES)
def test_samples_whose_prompts_are_text_can_be_fitted(name):
    trace = read_trace(sample_path(name))
    error = errors(fit(trace).residuals)
    assert abs(error["infinite_cache_hit_ratio"]) < 0.02
    assert max(abs(error[name]) for name in LENGTHS) < 0.12  # 150 requests have few beyond their p99


def test_a_fit_of_a_fit_is_the_same():
    first = generate(load_recipe("rag")[0] | {"num_requests": 2000, "hash_block_tokens": 64})
    second = generate(fit(first).recipe)
    error = errors(compare(first, second))
    assert abs(error["infinite_cache_hit_ratio"]) < 0.02
    assert max(abs(error[name]) for name in LENGTHS) < 0.05
    assert abs(error["arrival_cv"]) < 0.05


def test_what_is_not_learnt_is_said():
    trace = generate(load_recipe("chat_multi_turn")[0] | {"num_requests": 100})
    assert not_learnt(trace) == ["session_id", "parent", "think_time_ps"]
    assert fit(trace).recipe["fit"]["not_learnt"] == ["session_id", "parent", "think_time_ps"]


@pytest.mark.parametrize("num_requests", [1, 2, 3, 30])
@pytest.mark.parametrize("arrivals", [{"kind": "poisson", "rate_rps": 1}, {"kind": "all_at_once"}])
def test_small_traces_can_be_fitted(num_requests, arrivals):
    trace = generate(load_recipe("rag")[0] | {"num_requests": num_requests, "arrivals": arrivals})
    assert generate(fit(trace).recipe).num_requests == num_requests


def test_equal_requests_can_be_fitted():
    ids = Ragged.of_ids([[0, 1]] * 50)
    trace = Trace("t", np.arange(50), np.full(50, 30), np.full(50, 9), hash_block_tokens=16, hash_ids=ids)
    made = generate(fit(trace).recipe)
    assert set(made.num_output_tokens.tolist()) == {9}
    assert made.num_requests == 50


def test_the_forest_of_prefixes():
    rows = [[0, 1, 2], [0, 3], [0, 1, 2, 4], [0, 1, 5], [0, 3, 6], [7], [0, 1, 2, 4]]
    forest = prefix_forest(Ragged.of_ids(rows))
    assert forest.num_shared.tolist() == [0, 1, 3, 2, 2, 0, 4]
    assert forest.holder.tolist() == [-1, 0, 0, 2, 1, -1, 2]
    assert forest.num_common == 0  # one of seven does not begin with block 0
    forest = prefix_forest(Ragged.of_ids(rows[:5]))
    assert forest.num_common == 1
    assert forest.repeats.tolist() == [2, 3, 4]


def test_system_prompts_are_told_by_what_is_shared_conversations_by_what_is_new():
    prompts = {"kind": "lognormal", "median": 300, "sigma": 1}
    base = {"name": "t", "arrivals": {"kind": "poisson", "rate_rps": 1}, "prompt_tokens": prompts, "output_tokens": 50}
    base |= {"hash_block_tokens": 16, "num_requests": 1000}
    system = generate(base | {"prefix": {"kind": "system_prompts", "count": 5, "tokens": 160}})
    turns = generate(base | {"sessions": {"kind": "multi_turn", "turns": 9, "turn_tokens": 30}})
    tables = fit(system).recipe["reuse"]["shared_blocks"]
    assert all(table == {"kind": "fixed", "value": 10} for table in tables)
    assert "new_blocks" in fit(turns).recipe["reuse"]


def test_what_is_continued_is_replaced_by_what_continues_it():
    candidates = Candidates()
    for row, (num_blocks, arrival_s) in enumerate([(5, 0), (9, 1), (5, 100)]):
        candidates.add(row, num_blocks, arrival_s)
    assert candidates.take(4, 1, now_s=200, age_s=199) == (0, 5)  # as long as wanted; of two the older
    assert candidates.take(4, 1, now_s=200, age_s=199) == (2, 5)
    assert candidates.take(4, 1, now_s=200, age_s=199) == (1, 9)  # none of that length is left; this one stays
    candidates.add(3, 5, 200)
    assert candidates.take(4, 1, now_s=201, age_s=200) == (3, 5)  # the blocks are held by a later one too
    assert candidates.take(9, 0, now_s=201, age_s=200) == (1, 9)  # but not all of them


def test_where_none_is_long_enough_the_longest_is_taken():
    candidates = Candidates()
    candidates.add(0, 2, 0)
    candidates.add(1, 3, 1)
    assert candidates.take(7, 1, now_s=2, age_s=1) == (1, 3)


def test_a_coarse_clock_is_noticed():
    rng = np.random.Generator(np.random.PCG64(1))
    ticks = np.sort(rng.integers(0, 1000, 5000))
    assert clock_quantum_s(ticks * 3.0) == 3
    assert clock_quantum_s(ticks * 3.0 + rng.choice([-0.001, 0, 0.001], 1000)[ticks]) == 3
    assert clock_quantum_s(np.sort(rng.random(5000))) == 0
    assert clock_quantum_s(np.sort(rng.random(100)[rng.integers(0, 100, 5000)])) == 0  # many ties, but no clock


def test_ranks_of_equal_values_are_shared():
    # Kendall and Gibbons 1990: mean ranks 1.5 1.5 3 4 against 1 2 3 4
    assert rank_correlation(np.array([1, 1, 2, 3]), np.array([1, 2, 3, 4])) == pytest.approx(4.5 / np.sqrt(4.5 * 5))
    assert rank_correlation(np.array([1, 1]), np.array([1, 2])) == 0


def test_tables_are_recipes():
    assert table(np.array([5, 5])) == {"kind": "fixed", "value": 5}
    assert table(np.arange(101), (0, 0.5, 1)) == {
        "kind": "empirical",
        "probabilities": [0, 0.5, 1],
        "values": [0, 50, 100],
    }


@pytest.mark.parametrize(
    ("residual", "error"),
    [
        (Residual("infinite_cache_hit_ratio", 0.37, 0.375), "+0.50 points"),
        (Residual("arrival_cv", 2.0, 1.9), "-5.00 %"),
        (Residual("length_rank_correlation", 0.1, 0.05), "-0.05"),
        (Residual("hit_blocks_p50", 0, 1), "+1.00"),
    ],
)
def test_errors_have_their_units(residual, error):
    assert residual.error == error
