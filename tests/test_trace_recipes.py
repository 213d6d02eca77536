"""`kvtwin trace synth` and `kvtwin trace fit`: traces from recipes, and recipes from traces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Kvtwin, in_folder, refusals

from traces.reading import read_trace


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def refused(kvtwin):
    return refusals(kvtwin)


def test_synth_writes_the_same_bytes_and_the_recipe_with_them(kvtwin):
    for name in ("a.jsonl", "b.jsonl"):
        finished = kvtwin("trace", "synth", "rag", "--out", name, "--seed", "3", "--num-requests", "40")
        assert finished.status == 0
        assert finished.out.startswith(f"{name}: kvtwin, 40 requests over ")
    assert Path("a.jsonl").read_bytes() == Path("b.jsonl").read_bytes()
    recipe = read_trace("a.jsonl").recipe
    assert (recipe["name"], recipe["seed"], recipe["num_requests"]) == ("rag", 3, 40)
    Path("again.yaml").write_text(json.dumps(recipe))
    assert kvtwin("trace", "synth", "again.yaml", "--out", "c.jsonl").status == 0
    assert Path("c.jsonl").read_bytes() == Path("a.jsonl").read_bytes()


def test_synth_writes_other_formats_and_says_what_they_lack(kvtwin):
    finished = kvtwin("trace", "synth", "chat_multi_turn", "--out", "t.csv", "--to", "vidur", "--num-requests", "20")
    assert finished.status == 0
    assert "vidur cannot carry: which prompts share a prefix" in finished.errors[0]
    assert read_trace("t.csv").num_requests == 20


def test_fit_shows_its_residuals_and_keeps_them(kvtwin):
    kvtwin("trace", "synth", "rag", "--out", "t.jsonl", "--num-requests", "300")
    finished = kvtwin("trace", "fit", "t.jsonl", "--out", "like.yaml")
    assert finished.status == 0
    head, *rows = finished.out.splitlines()
    assert head.split() == ["statistic", "trace", "recipe", "error"]
    assert rows[-1] == "like.yaml"
    assert any(line.startswith("infinite_cache_hit_ratio") and line.endswith(" points") for line in rows)
    written = Path("like.yaml").read_text()
    assert written.startswith("# Learnt by `kvtwin trace fit t.jsonl`.\n")
    assert f"# {head}" in written
    assert kvtwin("trace", "synth", "like.yaml", "--out", "u.jsonl").status == 0
    assert read_trace("u.jsonl").name == "like"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("synth", "rag"), "the following arguments are required: --out"),
        (("synth", "rg", "--out", "t.jsonl"), "recipe rg: no such file, nor a known name; expected such as rag"),
        (("synth", "rag", "--out", "t.xyz"), "the ending of t.xyz tells no format to write"),
        (
            ("synth", "rag", "--out", "t.jsonl", "--seed", "-1"),
            "rag.yaml, key seed: -1; expected a whole number",
        ),
        (("fit", "absent", "--out", "r.yaml"), "absent: cannot be read"),
        (("fit", "absent", "--out", "r.yaml", "--seed", "-1"), "argument --seed: -1; expected a whole number from 0"),
    ],
)
def test_synth_and_fit_refuse(refused, words, message):
    assert message in refused("trace", *words)
