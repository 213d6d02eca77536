"""`kvtwin doctor`: what it says of a machine that is ready, and of one that is not."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kvtwin.doctor import Check, check_kernels, check_package, check_python, check_threads, doctor, print_doctor

ROOT = Path(__file__).parents[1]


def test_this_machine_can_run_the_simulator():
    checks = {check.name: check for check in doctor()}
    for name in ("Python", "numpy", "simpy", "hydra-core", "rich", "kernels"):
        assert checks[name].state == "ok", checks[name]
    assert checks["torch"].state in {"ok", "absent"}


def test_an_old_python_and_a_missing_package_are_errors_with_a_remedy():
    assert check_python((3, 10)) == Check("Python", "error", "3.10: kvtwin needs 3.11 or newer")
    missing = check_package("no-such-package-of-ours", "absent", "pip install it")
    assert missing == Check("no-such-package-of-ours", "absent", "not installed; pip install it")


@pytest.mark.parametrize(
    ("omp_num_threads", "state", "words"),
    [
        (None, "ok", "not set"),
        ("1", "ok", "OMP_NUM_THREADS=1"),
        ("4", "ok", "OMP_NUM_THREADS=4"),
        ("5", "warning", "oversubscribed"),
        ("many", "warning", "expected a whole number"),
    ],
)
def test_threads(omp_num_threads, state, words):
    check = check_threads(omp_num_threads, num_cores=4)
    assert check.state == state
    assert words in check.detail


def test_our_kernels_are_told_from_the_other_package_of_that_name(tmp_path):
    assert check_kernels(ROOT / "kernels", ROOT / "core").state == "ok"

    # The other package, in site-packages while ours is somewhere else.
    assert check_kernels(tmp_path / "kernels", ROOT / "core").state == "error"

    # The other package written over ours: its files, and a leftover of ours.
    overwritten = tmp_path / "kernels"
    overwritten.mkdir()
    (overwritten / "reference.py").touch()
    (overwritten / "__init__.py").write_text("__version__ = '0.11'\n")
    check = check_kernels(overwritten, tmp_path / "core")
    assert check.state == "error"
    assert "pip uninstall kernels" in check.detail

    assert check_kernels(None, ROOT / "core").state == "error"


@pytest.mark.parametrize(
    ("states", "last_line"),
    [
        (["ok", "ok"], "ready"),
        (["ok", "absent", "warning"], "ready; 1 optional part absent, 1 warning"),
        (["ok", "absent", "error"], "not ready: 1 to repair"),
    ],
)
def test_the_last_line_sums_up(states, last_line):
    out = io.StringIO()
    print_doctor([Check(f"part {number}", state, "") for number, state in enumerate(states)], file=out)
    assert out.getvalue().splitlines()[-1].strip() == last_line
