"""`trace=synth`: a run of a recipe, without a trace file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command import Kvtwin, in_folder, refusals

from traces.generate import generate
from traces.recipe import load_recipe

SMALL = ("trace.num_requests=40", "report=false", "out=run")


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_a_recipe_runs_without_a_file(kvtwin):
    summary = kvtwin("sim", "trace=synth", "trace.recipe=rag", "trace.seed=5", *SMALL).summary
    assert summary["trace"]["name"] == "rag"
    assert summary["trace"]["num_requests"] == 40
    assert summary["trace"]["sha256"] == generate(load_recipe("rag")[0], num_requests=40, seed=5).sha256
    assert summary["config"]["trace"]["recipe"] == "rag"
    kvtwin("trace", "synth", "rag", "--seed", "5", "--num-requests", "40", "--out", "t.jsonl")
    of_file = kvtwin("sim", "trace=file", "trace.path=t.jsonl", "report=false", "out=other").summary
    assert of_file["decisions"] == summary["decisions"]
    assert of_file["metrics"] == summary["metrics"]


def test_a_recipe_of_ones_own_and_deadlines_that_nothing_looks_at(kvtwin):
    recipe = (
        "{name: mine, arrivals: {kind: all_at_once}, prompt_tokens: 100, output_tokens: 5, deadlines: {after_s: 3}}"
    )
    Path("my recipe.yaml").write_text(recipe)
    summary = kvtwin("sim", "trace=synth", "trace.recipe=my recipe.yaml", *SMALL).summary
    assert summary["trace"]["name"] == "mine"
    assert summary["metrics"]["prefix_hit_ratio"] is None
    assert summary["ignored"] == ["deadline_ps"]


def test_a_closed_loop_is_closed_in_a_run(kvtwin):
    arrivals = "{kind: closed_loop, concurrency: 3, think_time_s: 0.01}"
    Path("loop.yaml").write_text(f"{{name: loop, arrivals: {arrivals}, prompt_tokens: 500, output_tokens: 50}}")
    finished = kvtwin("sim", "trace=synth", "trace.recipe=loop.yaml", *SMALL)
    requests = np.load(finished.folder / "requests.npz")
    arrivals_s, ends_s = requests["arrival_s"], requests["finish_s"]
    num_at_once = [int(((arrivals_s <= now) & (now < ends_s)).sum()) for now in arrivals_s]
    assert max(num_at_once) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("trace=synth", "trace.recipe=rgg"), "recipe rgg: no such file, nor a known name; expected such as rag"),
        (("trace=synth", "trace.seed=-1"), "trace.seed=-1: expected a whole number of at least 0, or null"),
        (
            ("trace=synth", "trace.num_requests=0"),
            "trace.num_requests=0: expected a whole number of at least 1, or null",
        ),
        (("trace.recipe=rag",), "trace.recipe: no such key"),
    ],
)
def test_refusals(kvtwin, words, message):
    assert message in refusals(kvtwin)("sim", *words)
