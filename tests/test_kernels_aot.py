"""Every kernel compiles for GPUs that are not here, without spilling registers and within their shared memory."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kernels.aot import TARGETS as ALL_TARGETS
from kernels.aot import Resources, compile_case, problems
from kernels.aot_cases import cases

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {target.name: target for target in ALL_TARGETS}


def compiled(*args: str) -> list[dict]:
    """What `python -m kernels.aot_check` prints, in a process in which Triton compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "kernels.aot_check", *args]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    assert done.returncode == int(any(line["problems"] for line in lines)), done.stderr
    return lines


def test_every_kernel_fits_every_target():
    lines = compiled("--pairwise")

    assert [line for line in lines if line["problems"]] == []
    quick = {case.name: case for case in cases() if case.num_quick_targets}
    assert {case.kernel.__name__ for case in quick.values()} == {case.kernel.__name__ for case in cases()}
    assert Counter(line["case"] for line in lines) == {name: case.num_quick_targets for name, case in quick.items()}
    assert {line["target"] for line in lines} == set(TARGETS)
    for name, case in quick.items():  # both specialisations where there are two
        assert {line["divisible"] for line in lines if line["case"] == name} == set(case.divisibilities)


def test_a_kernel_with_too_few_registers_is_noticed():
    line = compiled("--case", "add_rms_norm, widest", "--target", "sm_90", "--max-registers", "32")[0]

    assert line["registers"] <= 32
    assert line["stack_bytes"] > 0
    assert line["problems"] == [f"{line['stack_bytes']} bytes of stack a thread: registers are spilled"]


def test_limits_are_those_of_the_target():
    fits_sm_90 = Resources(registers=128, stack_bytes=0, shared_bytes=227 * 1024)

    assert problems(fits_sm_90, TARGETS["sm_90"]) == []
    assert problems(fits_sm_90, TARGETS["sm_100"]) == []
    assert problems(fits_sm_90, TARGETS["sm_80"]) == ["232,448 bytes of shared memory, sm_80 has 166,912"]
    assert problems(fits_sm_90, TARGETS["gfx942"]) == ["232,448 bytes of shared memory, gfx942 has 65,536"]


def test_the_interpreter_cannot_compile():
    with pytest.raises(ValueError, match="in a process without TRITON_INTERPRET"):
        compile_case(cases()[0], ALL_TARGETS[0], divisible=True)


def test_the_page_lists_every_kernel_with_its_present_work():
    page = (ROOT / "docs" / "kernels.md").read_text()

    for case in cases():
        rows = [row for row in page.splitlines() if row.startswith(f"| {case.name} |")]
        assert len(rows) == 2, f"{case.name} is not on docs/kernels.md: run scripts/kernel-report"
        assert f"| {case.work.num_bytes / 1e6:,.1f} | {case.work.flops / 1e9:,.2f} |" in rows[0]
