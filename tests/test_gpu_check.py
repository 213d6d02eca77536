"""`scripts/gpu-check`: its dry run does all stages in small; it asks the whole grid, and notices a wrong kernel."""

import json
import os
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # benchmarks are no package that is installed

from benchmarks.gpu import checks, correctness  # noqa: E402
from benchmarks.gpu.__main__ import STAGES, main  # noqa: E402
from benchmarks.gpu.sizes import GPU  # noqa: E402


def test_a_dry_run_passes_every_stage_and_leaves_one_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "dry.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes that a stage starts
    assert main(["--dry-run", "--out", str(file)]) == 0, capsys.readouterr().out
    result = json.loads(file.read_text())
    assert result["schema"] == "kvtwin.gpu_check/1"
    assert result["dry_run"] is True
    assert {name: stage["status"] for name, stage in result["stages"].items()} == dict.fromkeys(STAGES, "passed")
    rows = {name: stage["rows"] for name, stage in result["stages"].items()}
    assert {row["kernel"] for row in rows["correctness"]} == set(checks.CHECKS)
    assert all(row["num_wrong"] == 0 and row["worst_share"] <= 1 for row in rows["correctness"])
    assert not [row for row in rows["bandwidth"] if "error" in row]
    assert [row["step"] for row in rows["engine_speed"]] == [
        "weights",
        "2 x 16 decode",
        "2 x 3 decode behind 16 shared",
        "2 x 16 decode + 8 prefill",
        "8 prefill",
    ]
    one_by_one, overlapping, pressed = rows["overlap"]
    assert overlapping["num_compared"] == one_by_one["num_compared"] == 5
    assert overlapping["num_differing"] == 0
    assert pressed["lockstep"]["first_difference"] is None
    assert pressed["num_swap_ins"] > 0
    assert rows["end_to_end"][0]["lockstep"]["identical"] is True
    assert os.listdir(tmp_path) == ["dry.json"]


def test_on_a_gpu_attention_is_checked_over_the_whole_grid():
    asked = correctness.grid(GPU)

    for kernel in ("decode_attention", "prefill_attention"):
        shapes = {
            (check.parameters["head_dim"], check.parameters["block_size"], check.parameters["group_size"])
            for check in asked
            if check.kernel == kernel and check.parameters["dtype"] is torch.bfloat16
        }
        assert shapes == set(product([64, 80, 96, 128, 192, 256], [1, 8, 16, 48, 256], [1, 4, 7]))
    assert {check.kernel for check in asked} == set(checks.CHECKS)


def test_a_wrong_kernel_and_a_failing_one_are_noticed(monkeypatch):
    job = correctness.Check("swiglu", {"width": 64, "dtype": torch.float32}), "cpu"
    assert correctness.outcome_of(job).wrong == ""

    monkeypatch.setattr(checks, "swiglu", lambda gate_up: torch.full((9, 64), torch.nan))
    assert correctness.outcome_of(job).wrong == "nan of the tolerance"

    monkeypatch.setattr(checks, "swiglu", lambda gate_up: 1 / 0)
    assert correctness.outcome_of(job).wrong == "ZeroDivisionError: division by zero"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main([]) == 2
    assert "no GPU that torch can use" in capsys.readouterr().err
