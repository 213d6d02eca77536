"""Launchers that take jobs to other machines, here on this one: their runs are those of our own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command import Kvtwin, in_folder, row, summary_of, write_trace

GRID = ("eviction=lru,fifo", "pool.num_blocks=8,64")


@pytest.fixture
def kvtwin(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def figures(root: str) -> dict[str, Any]:
    """The summaries by folder, without what the runs cost."""
    summaries = {folder.name: summary_of(folder) for folder in Path(root).iterdir() if folder.is_dir()}
    return {name: {**summary, "cost": None} for name, summary in summaries.items()}


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("submitit", ("hydra/launcher=submitit_local",)),
        ("ray", ("hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2")),
    ],
    ids=["submitit_local", "ray"],
)
def test_two_by_two_runs_are_those_of_our_own_launcher(kvtwin, tmp_path, package, words):
    if find_spec("hydra_plugins") is None or find_spec(f"hydra_plugins.hydra_{package}_launcher") is None:
        pytest.skip(f"needs hydra-{package}-launcher, which is no dependency")
    trace = write_trace(tmp_path / "own.jsonl", [row(0), row(0.5), row(1, 90)])
    grid = ("-m", "trace=file", f"trace.path={trace}", *GRID)
    ours = kvtwin("sim", *grid)
    Path("runs").rename("ours")
    theirs = kvtwin("sim", *words, *grid)
    assert (ours.status, theirs.status) == (0, 0)
    assert figures("ours/sim") == figures("runs/sim")
    rows = ours.out.splitlines()[3:]
    collected = kvtwin("collect", "runs/sim").out.splitlines()[3:]
    assert len(rows) == 4
    assert sorted(collected) == sorted(rows)
