"""Sweeps: a row a job, each with its own resolved configuration; what goes wrong in one leaves the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Finished, Kvtwin, in_folder, row, summary_of, write_trace
from omegaconf import DictConfig, OmegaConf

from kvtwin.sweep import SweepGuard


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def own(tmp_path) -> tuple[str, str]:
    """A trace of a few requests, as the words that choose it."""
    trace = write_trace(tmp_path / "own.jsonl", [row(0), row(0.5), row(1, 90)])
    return "trace=file", f"trace.path={trace}"


def cells(finished: Finished, num_labels: int) -> list[tuple[str, ...]]:
    """The labels of each row of the table."""
    lines = finished.out.splitlines()
    rule = next(number for number, line in enumerate(lines) if line.startswith("──"))
    return [tuple(line.split()[:num_labels]) for line in lines[rule + 1 :]]


def summaries(name: str = "sim") -> list[dict]:
    return [summary_of(folder) for folder in Path("runs", name).iterdir()]


def test_three_policies_at_four_capacities_are_twelve_rows(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "eviction=lru,fifo,random", "pool.num_blocks=64,128,256,512")
    assert (finished.status, finished.errors) == (0, [])
    rows = cells(finished, 3)
    expected = {(policy, blocks) for policy in ("lru", "fifo", "random") for blocks in ("64", "128", "256", "512")}
    assert {labels[:2] for labels in rows} == expected
    assert len(rows) == 12
    for policy, blocks, run in rows:  # each row names its folder, which holds its own resolved configuration
        summary = summary_of(Path("runs/sim", run))
        assert summary["config"]["pool"]["num_blocks"] == int(blocks)
        assert summary["config"]["eviction"]["_target_"].lower() == f"policies.eviction.{policy}.{policy}"
        assert summary["labels"]["eviction"] == policy
        assert summary["labels"]["num_blocks"] == int(blocks)


def test_a_failing_job_leaves_the_other_rows_and_shows_in_the_status(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "pool.num_blocks=64,0,256")
    assert finished.status == 2
    (line,) = finished.errors
    assert line.startswith("kvtwin: job 1 (trace=file ")
    assert line.endswith("pool.num_blocks=0: expected a whole number from 1 to 2147483647, auto or unbounded")
    assert [labels[0] for labels in cells(finished, 1)] == ["64", "256"]


def test_a_misspelt_policy_is_refused_before_any_job_runs(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "eviction=lru,ffio")
    assert finished.status == 2
    assert finished.errors == ["kvtwin: eviction=ffio: no such eviction; did you mean filo or fifo or s3fifo?"]
    assert not list(Path("runs").glob("sim/*"))


def test_the_sweeps_flag_may_stand_anywhere(kvtwin, own):
    rows = cells(kvtwin("sim", *own, "name=own,mine", "-m", "pool.num_blocks=64"), 1)
    assert rows == [("own",), ("mine",)]


def test_a_varied_seed_has_its_column(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "eviction=random", "seed=4,5")
    assert [labels[0] for labels in cells(finished, 1)] == ["4", "5"]
    assert sorted(summary["seed"] for summary in summaries()) == [4, 5]


def test_rows_of_one_class_with_other_parameters_can_be_told_apart(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "admission=greedy,reservation")
    assert [labels[0] for labels in cells(finished, 1)] == ["greedy", "reservation"]


def test_keys_of_one_ending_are_labelled_in_full(kvtwin, own, tmp_path):
    (tmp_path / "ended_alike.py").write_text(
        "from kvtwin import PriorityEviction\n"
        "class Mine(PriorityEviction):\n"
        "    def __init__(self, env, watermark): super().__init__(env)\n"
        "    def priority(self, block): return 0.0\n"
    )
    words = ("eviction._target_=ended_alike.Mine", "eviction.watermark=1", "admission.watermark=0.0,0.1")
    finished = kvtwin("sim", "-m", *own, *words)
    assert finished.out.splitlines()[1].split()[:2] == ["admission.watermark", "run"]
    assert [labels[0] for labels in cells(finished, 1)] == ["0.0", "0.1"]


def test_identical_jobs_do_not_collide(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "seed=1,1")
    first, second = (labels[0] for labels in cells(finished, 1))
    assert first != second
    assert first.rpartition("-")[0] == second.rpartition("-")[0]  # one configuration, two runs


def test_an_experiment_file_is_a_whole_sweep_from_any_folder(kvtwin):
    finished = kvtwin("sim", "+experiment=eviction_grid", "trace.limit=4")
    assert finished.status == 0
    assert len(cells(finished, 1)) == 9
    assert len(summaries("eviction_grid")) == 9


def test_one_folder_for_all_jobs_is_refused(kvtwin, own):
    finished = kvtwin("sim", "-m", *own, "seed=1,2", "out=mine")
    assert finished.status == 2
    assert finished.errors == [
        "kvtwin: out=mine: every job of the sweep would write there; expected ${hydra:job.num} in it"
    ]
    assert not Path("mine").exists()


def test_a_folder_for_each_job_is_what_is_asked_for(kvtwin, own):
    assert kvtwin("sim", "-m", *own, "seed=1,2", "out=mine/${hydra:job.num}").status == 0
    assert [summary_of(Path("mine", number))["seed"] for number in ("0", "1")] == [1, 2]


@pytest.fixture
def launchers(tmp_path) -> tuple[str, str]:
    """A second launcher, and experiments of which one asks for it."""
    (tmp_path / "mine" / "hydra" / "launcher").mkdir(parents=True)
    (tmp_path / "mine" / "experiment").mkdir()
    other = "_target_: hydra._internal.core_plugins.basic_launcher.BasicLauncher\n"
    (tmp_path / "mine" / "hydra" / "launcher" / "other.yaml").write_text(other)
    head = "# @package _global_\n"
    (tmp_path / "mine" / "experiment" / "a.yaml").write_text(f"{head}seed: 1\n")
    launcher = "defaults:\n  - override /hydra/launcher: other\n"
    (tmp_path / "mine" / "experiment" / "b.yaml").write_text(f"{head}{launcher}seed: 2\n")
    return "--config-dir", "mine"


def test_a_launcher_chosen_by_a_swept_experiment_comes_too_late_and_is_refused(kvtwin, own, launchers):
    finished = kvtwin("sim", *launchers, "-m", *own, "+experiment=a,b")
    assert finished.status == 2
    (line,) = finished.errors
    assert line == (
        "kvtwin: hydra/launcher=other is set by what the sweep varies, but the sweep already runs with "
        "hydra/launcher=kvtwin; expected it on the command line"
    )
    assert not Path("runs/sim").exists()


def test_under_another_launcher_it_is_refused_when_the_job_comes():
    def chosen(launcher: str) -> DictConfig:
        return OmegaConf.create({"out": None, "hydra": {"runtime": {"choices": {"hydra/launcher": launcher}}}})

    guard = SweepGuard()
    guard.on_multirun_start(chosen("basic"))
    guard.on_job_start(chosen("basic"))
    with pytest.raises(SystemExit):
        guard.on_job_start(chosen("other"))


def test_a_launcher_chosen_before_the_sweep_begins_is_taken(kvtwin, own, launchers):
    assert len(cells(kvtwin("sim", *launchers, "-m", *own, "+experiment=b", "seed=3,4"), 1)) == 2
