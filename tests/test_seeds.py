"""Runs over several seeds: means with intervals, differences on common random numbers, and how they are kept."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Finished, Kvtwin, in_folder, row, summary_of, write_trace

from core.errors import InputError
from kvtwin.composition import with_seeds
from kvtwin.intervals import Interval, interval_of, t_quantile
from kvtwin.repeats import Repeats, repeats_of
from kvtwin.seeds_tables import verdict


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


# ---- intervals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_degrees", "quantile"),  # published tables, to the digits that they have
    [
        (1, 12.7062),
        (2, 4.30265),
        (3, 3.18245),
        (4, 2.77645),
        (9, 2.26216),
        (10, 2.22814),
        (29, 2.04523),
        (100, 1.98397),
    ],
)
def test_students_quantiles_are_those_of_the_tables(num_degrees, quantile):
    assert t_quantile(num_degrees) == pytest.approx(quantile, abs=5e-5 if num_degrees == 1 else 5e-6)


def test_another_confidence_and_the_limit_of_many_degrees():
    assert t_quantile(4, 0.99) == pytest.approx(4.604095, abs=5e-7)
    assert t_quantile(1000) == pytest.approx(1.962339, abs=5e-7)  # 1.959964 for the normal distribution


def test_an_interval_by_hand():
    found = interval_of([1.0, 2.0, 3.0])  # standard deviation 1, so 4.302653 / sqrt(3)
    assert (found.mean, found.num) == (2.0, 3)
    assert found.half_width == pytest.approx(2.484138, abs=1e-6)
    assert interval_of([0.1, 0.1, 0.1]) == Interval(0.1, 0.0, 3)
    assert interval_of([5]) == Interval(5, None, 1)


def test_nineteen_of_twenty_intervals_hold_the_mean():
    draws = np.random.default_rng(1).normal(3.0, 2.0, size=(2000, 5))
    found = [interval_of(row) for row in draws.tolist()]
    held = sum(abs(each.mean - 3.0) <= each.half_width for each in found if each.half_width is not None)
    assert held == pytest.approx(1900, abs=30)  # three standard deviations of the count


# ---- differences ----------------------------------------------------------------------------------------------------


def summary(seed: int, eviction: str, ttft_s: float, trace: str = "", **metrics: Any) -> dict[str, Any]:
    return {
        "kind": "sim",
        "seed": seed,
        "config": {"seed": seed, "out": None, "name": "sim", "eviction": eviction},
        "labels": {"eviction": eviction, "seed": seed},
        "trace": {"name": "t", "sha256": trace or f"of seed {seed}", "num_requests": 9},
        "metrics": {"ttft_s": {"p50": ttft_s, "p99": None}, **metrics},
        "interrupted": False,
    }


def repeats(*summaries: dict[str, Any]) -> list[Repeats]:
    return repeats_of((each, None) for each in summaries)


def test_common_random_numbers_resolve_what_the_means_do_not():
    loads_s = [1.0, 5.0, 3.0, 9.0]  # what the seeds' traces do to any policy
    lru, fifo = repeats(
        *(summary(seed, "lru", load) for seed, load in enumerate(loads_s)),
        *(summary(seed, "fifo", load + 0.1 + 0.01 * seed) for seed, load in enumerate(loads_s)),
    )
    assert lru.figures()["ttft_s.p50"].half_width > 5  # nothing to be seen between 4.5 and 4.615
    difference = fifo.less(lru)["ttft_s.p50"]
    assert difference.mean == pytest.approx(0.115)
    assert difference.half_width == pytest.approx(3.182446 * 0.0129099 / 2, rel=1e-4)
    assert verdict(difference) == "resolved"
    assert lru.less(fifo)["ttft_s.p50"].mean == -difference.mean


def test_pairs_are_by_seed_and_what_has_no_partner_is_left_out():
    one, other = repeats(
        *(summary(seed, "lru", seed, num_evictions=seed) for seed in (3, 1, 2)),
        *(summary(seed, "fifo", 2 * seed) for seed in (2, 3, 4)),
    )
    assert other.less(one) == {"ttft_s.p50": interval_of([2, 3])}
    assert one.figures()["num_evictions"].num == 3


@pytest.mark.parametrize(
    ("differences", "said"),
    [([0, 0], "equal"), ([0], "equal"), ([1], "one seed"), ([1, 1], "resolved"), ([1, 2], "not resolved")],
)
def test_what_is_said_of_a_difference(differences, said):
    assert verdict(interval_of(differences)) == said


def test_a_run_made_twice_counts_once_and_other_traces_are_no_partners():
    one, other = repeats(
        summary(0, "lru", 1), summary(0, "lru", 1), summary(1, "lru", 2), summary(0, "fifo", 1, "another")
    )
    assert one.seeds == [0, 1]
    assert not one.has_traces_of(other)
    assert one.has_traces_of(one)


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sweep"),
    [
        (["eviction=lru,fifo", "seeds=3"], ["-m", "eviction=lru,fifo", "seed=range(0,3)"]),
        (["seeds=2", "seed=7", "-m"], ["-m", "-m", "seed=range(7,9)"]),
        (["seeds=2", "seed=7", "--cfg", "job"], ["--cfg", "job", "seed=7"]),
        (["seed=1,2"], ["seed=1,2"]),
    ],
)
def test_seeds_is_short_for_a_sweep(words, sweep):
    assert with_seeds("sim", words) == sweep


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["seeds=0"], "seeds=0: expected a whole number of at least 1"),
        (["seeds=few"], "seeds=few: expected a whole number of at least 1"),
        (["seeds=3", "seed=1,2"], "seed=1,2: expected the first of the seeds=3, a whole number"),
    ],
)
def test_what_is_no_number_of_seeds_is_refused(words, complaint):
    with pytest.raises(InputError, match=f"^{complaint}$"):
        with_seeds("sim", words)


def test_settings_on_both_sides_of_an_option_are_shown(kvtwin):
    finished = kvtwin("sim", "eviction=fifo", "--cfg", "job", "--package=eviction", "seeds=3")
    assert (finished.status, finished.errors) == (0, [])
    assert finished.out == "# @package eviction\n_target_: policies.eviction.fifo.FIFO\n"


def test_a_verb_that_has_no_runs_to_repeat_refuses_seeds():
    with pytest.raises(InputError, match="seeds=3: kvtwin size does not repeat runs; expected kvtwin sim or engine"):
        with_seeds("size", ["seeds=3"])


SYNTH = ("trace=synth", "trace.num_requests=40", "pool.num_blocks=300")


@pytest.fixture
def repeated(kvtwin) -> tuple[Finished, list[Path], list[dict[str, Any]]]:
    """Two policies over three seeds: what was printed, the folders of the means, the summaries of the runs."""
    finished = kvtwin("sim", "seeds=3", "seed=5", "eviction=lru,fifo", *SYNTH)
    folders = sorted(Path("runs/sim").iterdir())
    means = [folder for folder in folders if (folder / "seeds.json").exists()]
    return finished, means, [summary_of(folder) for folder in folders if folder not in means]


def test_means_and_differences_stand_in_tables_and_files(repeated, kvtwin):
    finished, means, runs = repeated
    assert (finished.status, finished.errors) == (0, [])
    assert "Means over seeds, ± 95 % t-interval, n = 3:" in finished.out
    assert "Difference to lru on the same traces, seed by seed, ± 95 % t-interval (in brackets: not re" in finished.out
    assert len([line for line in finished.out.splitlines() if line.startswith(("lru ", "fifo "))]) == 2 + 1
    assert sorted((run["labels"]["eviction"], run["seed"]) for run in runs) == [
        *(("fifo", seed) for seed in (5, 6, 7)),
        *(("lru", seed) for seed in (5, 6, 7)),
    ]
    # Every seed has a trace of its own, and both policies had the same three.
    assert len({run["trace"]["sha256"] for run in runs}) == 3
    for folder in means:
        document = json.loads((folder / "seeds.json").read_text())
        assert document["schema"] == "kvtwin.seeds/1"
        ours = [run for run in runs if run["labels"]["eviction"] == document["labels"]["eviction"]]
        assert [summary_of(folder / path)["seed"] for path in document["runs"].values()] == [5, 6, 7]
        values = [run["metrics"]["ttft_s"]["mean"] for run in ours]
        figure = document["metrics"]["ttft_s.mean"]
        assert figure["mean"] == pytest.approx(np.mean(values))
        assert figure["half_width"] == pytest.approx(4.3026527 * np.std(values, ddof=1) / 3**0.5)
        assert figure["num"] == 3
    compared = kvtwin("compare", *map(str, means), "--json")
    document = json.loads(compared.out)
    assert document["seeds"] == [5, 6, 7]
    assert list(document["changes"]) == ["eviction._target_"]
    same = {"a": 40, "b": 40, "difference": 0, "half_width": 0, "num": 3, "verdict": "equal"}
    assert document["metrics"]["ttft_s.n"] == same
    told = kvtwin("compare", *map(str, means)).out.splitlines()
    assert told[0].startswith("eviction._target_: policies.eviction.")
    assert told[-1] == "differences seed by seed on the same traces, 95 % t-intervals, n = 3 seeds"
    # Whoever ran the jobs, their rows and means can be had from their folders.
    collected = kvtwin("collect")
    assert (collected.status, collected.out.count("n = 3:"), collected.out.count("± 95 %")) == (0, 1, 2)
    rows = list(csv.DictReader(io.StringIO(kvtwin("collect", "--csv", "runs").out)))
    assert [(row["label.eviction"], row["seed"]) for row in rows] == [
        *(("fifo", seed) for seed in "567"),
        *(("lru", seed) for seed in "567"),
    ]
    assert {float(row["ttft_s.mean"]) for row in rows} == {run["metrics"]["ttft_s"]["mean"] for run in runs}


def test_runs_that_cannot_be_compared_are_refused(kvtwin):
    kvtwin("sim", "-m", *SYNTH[:1], "trace.num_requests=30,40", "seed=0,9", "out=mine/${hydra:job.num}")
    Path("broken").mkdir()
    Path("broken/seeds.json").write_text("{}")
    for folder, said in {
        "mine/0": "A and B replay different requests (chat_multi_turn and chat_multi_turn); expected the same trace",
        "mine/3": "no seed in common (A has 0, B has 9); expected the same seeds, for the same random numbers",
        "nowhere": "no run folder at nowhere",
        "broken": "broken/seeds.json: schema is None, expected 'kvtwin.seeds/1'",
        "mine": "mine is not a finished run: it has no summary.json; expected one of the 4 below it: mine/0, mine/1, ",
    }.items():
        finished = kvtwin("compare", "mine/2", folder)
        assert finished.status == 2
        assert said in finished.errors[0]


def test_single_runs_are_compared_without_an_interval(kvtwin):
    kvtwin("sim", "-m", *SYNTH, "eviction=lru,fifo", "out=of/${hydra:job.num}")
    finished = kvtwin("compare", "of/0", "of/1")
    assert finished.status == 0
    assert "one seed" in finished.out
    assert finished.out.splitlines()[-1].startswith("one seed: differences are those of this trace")


def test_whether_a_service_level_was_met_is_a_column_where_one_was_set(kvtwin):
    sweep = ["sim", "-m", *SYNTH, "eviction=lru,fifo", "out=of/${hydra:job.num}"]
    without = kvtwin("sim", "-m", *SYNTH, "eviction=lru,fifo")
    assert "SLO" not in without.out
    finished = kvtwin(*sweep, "slo.ttft_s=1e-9")  # one limit is enough
    heads, *_, lru, fifo = finished.out.splitlines()
    met = heads.index("SLO")
    assert [row[met - 2 : met + 4].strip() for row in (lru, fifo)] == ["0.0 %", "0.0 %"]
    assert "SLO attainment" in kvtwin("compare", "of/0", "of/1").out
    seeds = kvtwin("sim", "seeds=2", *SYNTH, "eviction=lru,fifo", "slo.ttft_s=99", "slo.tpot_s=9").out
    assert seeds.count("SLO") == 2  # over the means, and over the differences


def test_a_seed_of_the_trace_keeps_the_trace(kvtwin):
    kvtwin("sim", "seeds=2", *SYNTH, "trace.seed=4", "eviction=random", "name=kept")
    shas = {summary_of(path.parent)["trace"]["sha256"] for path in Path("runs/kept").rglob("summary.json")}
    assert len(shas) == 1


def test_a_recorded_trace_without_anything_drawn_is_told(kvtwin, tmp_path):
    trace = write_trace(tmp_path / "own.jsonl", [row(0), row(1)])
    finished = kvtwin("sim", "seeds=2", "trace=file", f"trace.path={trace}")
    assert finished.status == 0
    assert finished.errors == [
        "kvtwin: all seeds gave the same: a recorded trace has nothing drawn, trace=synth has; see docs/sweeps.md"
    ]


def test_collect_tells_what_it_cannot_read_and_shows_the_rest(kvtwin, tmp_path):
    trace = write_trace(tmp_path / "own.jsonl", [row(0), row(1)])
    kvtwin("sim", "trace=file", f"trace.path={trace}", "out=runs/good")
    Path("runs/bad").mkdir()
    Path("runs/bad/summary.json").write_text("{")
    finished = kvtwin("collect", "--json")
    assert finished.status == 1
    assert [record["run"] for record in json.loads(finished.out)] == ["runs/good"]
    assert finished.errors[0].startswith("kvtwin: runs/bad/summary.json: not readable as JSON")
    assert kvtwin("collect", "nowhere").errors == [
        "kvtwin: collect: no folder nowhere; expected one with finished runs, such as runs/sim"
    ]


def test_collect_gives_runs_of_other_options_a_table_of_their_own(kvtwin, tmp_path):
    """One of all, with a column for whatever any run was told, would be as wide as nobody reads."""
    own = "trace=file", f"trace.path={write_trace(tmp_path / 'own.jsonl', [row(0), row(1)])}"
    kvtwin("sim", "-m", *own, "eviction=lru,fifo", "pool.num_blocks=64", "out=runs/a/${hydra:job.num}")
    others = "scheduler.max_num_seqs=1,2", "allocation=paged", "hardware=a100_40gb"
    kvtwin("sim", "-m", *own, *others, "out=runs/b/${hydra:job.num}")
    finished = kvtwin("collect")
    first, second = (table.splitlines() for table in finished.out.split("\n\n"))
    assert first[0] == "hardware=h100_80gb num_blocks=64"
    assert second[0] == "eviction=lru hardware=a100_40gb allocation=paged"
    assert [line.split()[:2] for line in first[-2:]] == [["fifo", "1"], ["lru", "0"]]
    assert [line.split()[:2] for line in second[-2:]] == [["1", "0"], ["2", "1"]]
    assert max(map(len, finished.out.splitlines())) < 100
    kvtwin("sim", "-m", *own, "cluster.num_replicas=1,2", "out=runs/c/${hydra:job.num}")
    assert len(kvtwin("collect", "runs/c").out.split("\n\n")) == 1, "one replica and two are compared"
