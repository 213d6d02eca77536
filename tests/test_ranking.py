"""Several validated configurations: whether simulator and engine rank them alike, and what cannot be ranked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Kvtwin, in_folder

from kvtwin.comparison import SCHEMA
from kvtwin.ranking import RANKED, rankings_of, read_validated, write_ranking
from kvtwin.store import SCHEMA as RUN_SCHEMA

# Output tokens/s: simulated, measured. The engine's own runs differ by a tenth.
FIGURES = {"lru": (60.0, 58.0), "fifo": (50.0, 48.0), "sieve": (58.0, 60.0)}


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def validation(folder: Path, eviction: str, trace: str = "chat") -> Path:
    """The folder of a validation, as far as a ranking reads it."""
    simulated, measured = FIGURES[eviction]
    figures = {"simulated": simulated, "measured": measured, "error_ratio": None, "engine_spread_ratio": 0.1}
    undefined = dict.fromkeys(figures)  # of a metric that no run defines
    metrics = {"output_tokens_per_s": figures, "e2e_s.mean": {**figures, "engine_spread_ratio": None}}
    summary = {
        "schema": RUN_SCHEMA,
        "kind": "sim",
        "metrics": {},
        "labels": {"trace": trace, "eviction": eviction},
        "config": {"name": "v", "out": str(folder), "trace": {"name": trace}, "model": {}, "eviction": eviction},
        "trace": {"name": trace, "sha256": trace, "num_requests": 30},
        "interrupted": True,  # so that `collect` has no row for it
        "seed": 0,
    }
    (folder / "sim").mkdir(parents=True)
    (folder / "sim" / "summary.json").write_text(json.dumps(summary))
    comparison = {"schema": SCHEMA, "metrics": {**dict.fromkeys(RANKED, undefined), **metrics}}
    (folder / "comparison.json").write_text(json.dumps(comparison))
    return folder


def test_the_ranking_of_three_policies_is_compared_by_what_the_engine_can_tell_apart(tmp_path):
    again = validation(tmp_path / "again", "lru")
    (ranking,) = rankings_of(read_validated(validation(tmp_path / name, name)) for name in FIGURES)
    by_throughput = ranking.agreements()["output_tokens_per_s"]
    assert by_throughput == {
        "num_configurations": 3,
        "kendall_tau": pytest.approx(1 / 3),
        "best_simulated": ["lru"],
        "best_measured": ["sieve"],
        "best_agrees": False,
        "num_pairs": 3,
        "num_told_apart": 2,  # lru and sieve are within what the engine's own runs differ by
        "num_told_apart_alike": 2,
    }
    by_latency = ranking.agreements()["e2e_s.mean"]
    assert by_latency["best_measured"] == ["fifo"]
    assert by_latency["num_told_apart"] is None
    assert "ttft_s.mean" not in ranking.agreements()  # undefined on both sides

    written = json.loads((write_ranking(tmp_path / "runs", ranking) / "ranking.json").read_text())
    assert written["configurations"]["fifo"]["run"] == "../../../fifo"
    assert written["agreement"]["output_tokens_per_s"] == by_throughput
    assert rankings_of(map(read_validated, [again, tmp_path / "lru"])) == []  # one configuration, validated twice


def test_collect_ranks_what_was_validated_on_the_same_requests(kvtwin):
    validation(Path("runs/v/a"), "lru")
    alone = kvtwin("collect")
    assert alone.errors == [
        "note: left out what was interrupted, 1 of 1 runs; --json has it",
        "note: no ranking: it takes two configurations validated on the same requests, here is one; "
        "expected e.g. kvtwin validate -m eviction=lru,fifo",
    ]
    validation(Path("runs/v/b"), "fifo", trace="agents")
    assert "here no two of 2 were;" in kvtwin("collect").errors[1]
    validation(Path("runs/v/c"), "sieve")
    finished = kvtwin("collect")
    assert finished.status == 0
    assert finished.errors == ["note: left out what was interrupted, 3 of 3 runs; --json has it"]
    assert "Ranking of 2 configurations on chat, simulated and measured:" in finished.out
    ranked = [line.split() for line in finished.out.splitlines() if line.strip().startswith("Output throughput  ")]
    assert ranked == [["Output", "throughput", "lru", "sieve", "−1.00", "0", "of", "1", "–"]]
    summary = json.loads(Path("runs/v/c/sim/summary.json").read_text()) | {"interrupted": False}
    Path("runs/v/c/sim/summary.json").write_text(json.dumps(summary))
    Path("runs/v/c/engine-1").mkdir()
    Path("runs/v/c/engine-1/summary.json").write_text(json.dumps(summary | {"kind": "engine"}))
    rows = [line.split()[:2] for line in kvtwin("collect").out.splitlines()[2:5]]
    assert rows[1:] == [["measured", "c/engine-1"], ["simulated", "c/sim"]]
    Path("runs/v/c/comparison.json").write_text("[1")
    broken = kvtwin("collect")
    assert broken.status == 1
    assert broken.errors[1].startswith("kvtwin: runs/v/c/comparison.json: not readable as JSON")
