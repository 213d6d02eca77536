"""What sharing saves: exact on a small case, near the paper's figures on its lengths; asked for by a setting."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Kvtwin, in_folder, refusals
from engine_world import EngineSetup, run_trace
from world import UNIT_STEPS, Run, Settings, scheduler_of, trace_of

import kvtwin as product
from kvtwin.composition import compose_config
from kvtwin.paper_figures import paper_figures
from kvtwin.settings import check_settings
from sim.beam_model import RandomBeams
from sim.simulation import run_simulation
from traces.generate import generate
from traces.recipe import load_recipe
from traces.replay import ReplayConfig, TraceSource


@pytest.fixture
def kvtwin(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_scenario_6_by_setting() -> None:
    """n=4, P=100, O=20, blocks of 16: 6 blocks of the prompt are held once instead of four times, in all 19 decodes."""
    overrides = ["pool.num_blocks=64", "scheduler.prefix_caching=false", "decisions=off", "trace.num_samples=4"]
    run = product.simulate(trace_of([0], [100], [20]), overrides=overrides)
    shared, used, spent_s = (
        run.steps[name] for name in ("num_shared_references", "num_referenced_blocks", "duration_s")
    )
    assert shared.tolist() == [0] + [18] * 19
    assert used.tolist() == [7] + [10] * 12 + [14] * 7
    saved = np.dot(shared, spent_s) / np.dot(shared + used, spent_s)
    assert run.summary["metrics"]["sharing_saved_ratio"] == pytest.approx(saved)
    decoding_s = run.requests["finish_s"] - run.requests["first_token_s"]
    assert run.summary["metrics"]["tpot_s"]["mean"] == pytest.approx(decoding_s[0] / 19), "samples decode side by side"
    assert run.requests["num_output_tokens"].tolist() == [80]


def test_a_search_reaches_the_engine_by_setting_and_its_beams_a_file(tmp_path: Path) -> None:
    """Four beams need no more blocks than four samples; the summary tells how many were dropped."""
    tiny = ["model=tiny", "pool.num_blocks=64", "engine.shadow=true", "trace.beam_width=4", "engine.outputs=true"]
    search = product.run_engine(trace_of([0], [96], [20]), overrides=tiny, out=tmp_path / "run")
    written = gzip.decompress((tmp_path / "run" / "outputs.jsonl.gz").read_bytes())
    rows = [json.loads(line) for line in written.splitlines()]
    assert [row["place"] for row in rows] == [0, 1, 2, 3]
    assert {row["sample"] for row in rows} == {0, 1, 2, 3}
    assert [len(row["token_ids"]) for row in rows] == [20] * 4
    assert len({tuple(row["token_ids"]) for row in rows}) == 4
    scores = [row["log_probability"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert search.steps["num_referenced_blocks"].max() <= 14
    assert search.summary["metrics"]["output_tokens"] == 80
    assert search.summary["engine"]["num_beam_steps"] == 4 * 19
    assert search.summary["engine"]["num_beam_drops"] > 0


def test_on_the_engine_the_prefix_cache_alone_needs_17_blocks() -> None:
    """A hit leaves the last block of an aligned prompt to each of four requests: 5 + 4 x 3, not 6 + 4 x 2."""
    chosen = EngineSetup(Settings(num_blocks=40))
    apart = run_trace(trace_of([0] * 4, [96] * 4, [20] * 4, segments=[[(0, 96)]] * 4), chosen)
    assert max(apart.referenced_blocks()) == 17
    together = run_trace(trace_of([0], [96], [20], num_samples=[4]), chosen)
    assert max(together.referenced_blocks()) == 14


@pytest.mark.parametrize(
    ("recipe", "choice", "paper"),
    [
        ("alpaca_like", {"num_samples": 2}, 0.061),
        ("alpaca_like", {"num_samples": 6}, 0.098),
        ("sharegpt_like", {"num_samples": 2}, 0.162),
        ("alpaca_like", {"beam_width": 2}, 0.376),
        ("alpaca_like", {"beam_width": 6}, 0.552),
    ],
)
def test_savings_are_near_the_papers(recipe: str, choice: dict[str, int], paper: float) -> None:
    """As `+experiment=sharing_parallel` and `sharing_beam`, on fewer requests and with steps that all cost the same."""
    scheduler = scheduler_of(Settings(None, caching=False, max_num_seqs=4096))
    source = TraceSource(generate(load_recipe(recipe)[0], 40), ReplayConfig(16, **choice))
    run_simulation(source, scheduler, UNIT_STEPS, RandomBeams(0.05))
    steps = Run(scheduler, 40).step_arrays()
    shared = steps["num_shared_references"].sum()
    assert shared / (shared + steps["num_referenced_blocks"].sum()) == pytest.approx(paper, abs=0.035)


@pytest.mark.parametrize("name", ["sharing_parallel", "sharing_beam"])
def test_the_experiments_can_be_composed(name: str) -> None:
    config = compose_config("sim", [f"+experiment={name}"])
    check_settings(config)
    assert len(config.paper.checks) == 6


def test_a_row_may_be_named_by_several_labels() -> None:
    block = {"source": "a", "along": "recipe n", "checks": [{"metric": "x", "row": "b 2", "paper": 1, "within": 0.1}]}
    figures = paper_figures({"paper": block})
    assert figures is not None
    summaries = [{"labels": {"recipe": "b", "n": n}, "metrics": {"x": n / 2}} for n in (1, 2)]
    assert [row[2:] for row in figures.rows(summaries)] == [("1", "holds")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trace.num_samples=2", "trace.beam_width=2"], "the samples of a search are its beams; expected one of both"),
        (["trace.beam_width=2", "allocation=first_fit"], "2 samples, which cannot share blocks under this allocation"),
    ],
)
def test_what_is_refused(words: list[str], message: str, kvtwin: Kvtwin) -> None:
    assert message in refusals(kvtwin)("sim", "trace.limit=3", "scheduler.prefix_caching=false", *words)
