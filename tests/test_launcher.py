"""Sweeps side by side: what comes of the jobs is what comes of them one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from command import Kvtwin, in_folder, row, summary_of, write_trace
from omegaconf import OmegaConf
from world import trace_of

from kvtwin import trace_shelf

TWO = "hydra.launcher.processes=2"
ONE = "hydra.launcher.processes=1"
BASIC = "hydra/launcher=basic"


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


@pytest.fixture
def own(tmp_path) -> tuple[str, str]:
    trace = write_trace(tmp_path / "own.jsonl", [row(0), row(0.5), row(1, 90)])
    return "trace=file", f"trace.path={trace}"


def found(root: Path) -> dict[str, Any]:
    """All files below `root`; of a summary all but what the run cost."""
    files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    return {
        name: {**json.loads(content), "cost": None} if name.endswith("summary.json") else content
        for name, content in files.items()
        if name != "multirun.yaml"  # names the launcher
    }


def test_results_folders_rows_and_messages_are_those_of_hydras_basic_launcher(kvtwin, tmp_path, own):
    (tmp_path / "my_policies.py").write_text(
        "from kvtwin import PriorityEviction\n"
        "class Mine(PriorityEviction):\n"
        "    def __init__(self, env, of=1): super().__init__(env)\n"
        "    def priority(self, block): return 0.0\n"
    )
    # Values and options, of the trace too; a policy of the user's own; jobs that fail; notes of jobs that do not.
    grid = (
        *("-m", *own, "decisions=full", "eviction._target_=my_policies.Mine", "eviction.of=1"),
        *("trace.limit=1,3", "pool.num_blocks=4,0", "preemption=swap", "name=grid"),
    )
    launched = {}
    for launcher in (BASIC, TWO):
        finished = kvtwin("sim", launcher, *grid)
        launched[launcher] = finished.status, finished.out, finished.errors, found(Path("runs"))
        Path("runs").rename(launcher.partition("=")[0].replace("/", "-"))
    status, out, errors, files = launched[BASIC]
    assert (status, len(out.splitlines()), len(errors)) == (2, 3 + 2, 2 + 1)
    assert len([name for name in files if name.endswith("summary.json")]) == 2
    assert launched[TWO] == launched[BASIC]
    assert any(line.startswith("note: job 2 (trace=file ") for line in errors), "a note says of which job it is"


def test_a_trace_is_read_once_however_many_jobs_replay_it(kvtwin, tmp_path, own, monkeypatch):
    readers = tmp_path / "readers"
    load_trace = trace_shelf.load_trace

    def recorded(config):
        with readers.open("a") as file:
            file.write(f"{os.getpid() == this} {config.trace.get('seed') or ''}\n")
        return load_trace(config)

    this = os.getpid()
    monkeypatch.setattr(trace_shelf, "load_trace", recorded)
    kvtwin("sim", TWO, "-m", *own, "trace.limit=1,2", "trace.rate_scale=1,2")
    assert readers.read_text().split() == ["True"]
    readers.unlink()
    kvtwin("sim", TWO, "-m", "trace=synth", "trace.num_requests=2", "trace.seed=1,2")
    assert sorted(readers.read_text().splitlines()) == ["False 1", "False 2"]  # nobody else reads what a job reads


def test_jobs_in_turn_share_a_trace_too(monkeypatch):
    read, trace = [], trace_of([0], [1], [1])
    monkeypatch.setattr(trace_shelf, "load_trace", lambda config: read.append(config.trace.seed) or trace)
    shelf = trace_shelf.TraceShelf()
    configs = [
        OmegaConf.create({"seed": seed, "trace": {"recipe": "rag", "seed": of_trace, "limit": limit}})
        for seed, of_trace, limit in ((0, 1, 5), (0, 1, 9), (0, 2, 5), (1, None, 5), (2, None, 5))
    ]
    for config in configs:
        shelf.announce(config)
    traces = [shelf.trace(config) for config in configs]
    assert read == [1, 2, None, None]  # without a seed of its own a generated trace follows the run's
    assert traces[0] is traces[1]
    assert [each.key_book is not None for each in traces] == [True, True, False, False, False], "keys are shared, too"


def test_a_trace_that_cannot_be_read_is_told_by_each_job(kvtwin):
    finished = kvtwin("sim", TWO, "-m", "trace=file", "trace.path=absent.jsonl,'${absent}'", "seed=1,2")
    assert finished.status == 2
    assert [line.partition(" (")[0] for line in finished.errors] == [f"kvtwin: job {number}" for number in range(4)]
    assert not Path("runs/sim").exists()


def test_a_process_that_dies_takes_only_its_job_with_it(kvtwin, tmp_path, own):
    (tmp_path / "deadly.py").write_text(
        "import os\n"
        "from kvtwin import PriorityEviction\n"
        "class Deadly(PriorityEviction):\n"
        "    def __init__(self, env, at):\n"
        "        super().__init__(env)\n"
        "        if at == 1: os.kill(os.getpid(), 9)\n"
        "    def priority(self, block): return 0.0\n"
    )
    finished = kvtwin("sim", TWO, "-m", *own, "eviction._target_=deadly.Deadly", "eviction.at=0,1,2,3")
    assert finished.status == 1
    (line,) = finished.errors
    assert line.startswith("kvtwin: job 1 (")
    assert line.endswith("++eviction.at=1): its process ended with exit code -9")
    assert [text.split()[0] for text in finished.out.splitlines()[-3:]] == ["0", "2", "3"]


def test_processes_started_afresh_find_the_same(kvtwin, own, monkeypatch):
    """As where forking is not safe."""
    monkeypatch.setattr("kvtwin.processes.START_METHOD", "spawn")
    finished = kvtwin("sim", TWO, "-m", *own, "out=mine/${hydra:job.num}", "eviction=random", "seed=4,5")
    assert (finished.status, finished.errors) == (0, [])
    assert [summary_of(Path("mine", number))["seed"] for number in ("0", "1")] == [4, 5]


def test_processes_are_counted_from_one(kvtwin, own):
    finished = kvtwin("sim", "hydra.launcher.processes=0", "-m", *own, "seed=1,2")
    assert (finished.status, finished.errors) == (
        2,
        ["kvtwin: hydra.launcher.processes=0: expected a whole number of at least 1, or null"],
    )


def test_jobs_that_measure_time_run_one_at_a_time(kvtwin):
    finished = kvtwin("engine", TWO, "-m", "seed=1,2")
    assert finished.status == 2
    assert finished.errors == [
        "kvtwin: hydra.launcher.processes=2: jobs that measure times run alone; expected 1 or null"
    ]


@pytest.fixture
def long_sweep(tmp_path) -> subprocess.Popen[str]:
    """Two jobs of three run, side by side, each for long."""
    rows = [row(number * 0.01, 40, 400) for number in range(6000)]
    trace = write_trace(tmp_path / "long.jsonl", rows)
    words = ("trace=file", f"trace.path={trace}", "fast_forward=false", "seed=1,2,3", TWO)
    command = [sys.executable, "-m", "kvtwin.app", "sim", "-m", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, start_new_session=True, **pipes)
    runs = tmp_path / "runs" / "sim"
    while not runs.exists() or len(list(runs.iterdir())) < 2:
        time.sleep(0.05)
        assert child.poll() is None, child.communicate()
    time.sleep(0.3)
    return child


STOPPING = "stopping after this step; Ctrl-C again drops what ran"


def test_ctrl_c_ends_a_sweep_with_nothing_half_written(tmp_path, long_sweep):
    os.killpg(long_sweep.pid, signal.SIGINT)  # all processes, as a terminal does
    out, errors = long_sweep.communicate(timeout=30)
    assert (long_sweep.returncode, out) == (130, "")
    first, *rest, last = errors.splitlines()
    assert (first, last) == (STOPPING, "kvtwin: interrupted")
    assert [line.startswith("kvtwin: what ran of this job is in runs/sim/") for line in rest] == [True, True]
    runs = tmp_path / "runs" / "sim"
    assert [summary_of(folder)["interrupted"] for folder in runs.iterdir()] == [True, True]  # the third never began
    assert {path.name for path in runs.rglob("*") if path.is_file()} == {
        *("summary.json", "requests.npz", "steps.npz", "gaps.npz")
    }


def test_ctrl_c_twice_leaves_nothing(tmp_path, long_sweep):
    os.kill(long_sweep.pid, signal.SIGINT)
    assert long_sweep.stderr is not None
    assert long_sweep.stderr.readline().strip() == STOPPING
    os.kill(long_sweep.pid, signal.SIGINT)
    _, errors = long_sweep.communicate(timeout=30)
    assert long_sweep.returncode == 130
    assert errors.splitlines()[-1] == "kvtwin: interrupted"
    left = [folder for folder in (tmp_path / "runs").glob("sim/*") if not (folder / "summary.json").exists()]
    assert left == []


def test_jobs_may_have_processes_of_their_own(kvtwin, own):
    """Those of a fleet in shards end by SIGTERM, which a job must not take for Ctrl-C."""
    finished = kvtwin("sim", TWO, "-m", *own, "cluster.num_replicas=2", "cluster.shards=2", "routing=round_robin,hash")
    assert (finished.status, len(finished.out.splitlines())) == (0, 5)
