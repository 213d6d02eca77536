"""Threads are held against the CPUs that this process may really use."""

import platform
import subprocess
import sys

import pytest

from engine.cpu import UsableCpus, oversubscription, usable_cpus

TWO = UsableCpus(2, "this machine's CPUs")


@pytest.fixture
def cgroups(tmp_path):
    """An empty tree of control groups, in which this process is in `/a/b`."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    return tmp_path, own


def test_threads_that_fit_need_no_word():
    assert oversubscription(2, {}, TWO) == ""
    assert oversubscription(1, {"OMP_NUM_THREADS": "2"}, TWO) == ""
    assert oversubscription(1, {"OMP_NUM_THREADS": "4,2"}, TWO) == ""  # nested levels: not ours to judge


@pytest.mark.parametrize(
    ("num_threads", "environment", "named"),
    [(3, {}, "engine.threads=3"), (1, {"OMP_NUM_THREADS": "16"}, "OMP_NUM_THREADS=16")],
)
def test_too_many_threads_are_told_in_one_line(num_threads, environment, named):
    told = oversubscription(num_threads, environment, TWO)
    assert told.startswith(f"{named}, but this machine's CPUs: 2;")
    assert "\n" not in told


def test_half_a_cpu_is_too_few_for_one_thread():
    assert "quota: 0.5;" in oversubscription(1, {}, UsableCpus(0.5, "its control group's CPU quota"))


@pytest.mark.parametrize(
    ("files", "number"),
    [
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, 0.5),  # the parent's counts
        ({"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000"}, 0.25),  # version 1
    ],
)
def test_quotas_of_control_groups_are_found(cgroups, files, number):
    root, own = cgroups
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text + "\n")
    assert usable_cpus(root, own) == (number, "its control group's CPU quota")


def test_no_quota_no_limit(cgroups):
    root, own = cgroups
    (root / "cpu.max").write_text("max 100000\n")
    assert usable_cpus(root, own).limit != "its control group's CPU quota"
    assert usable_cpus(root, root / "missing").number >= 1


FAULTS_OF_A_STEP = """
import resource, sys
from engine.cpu import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
for _ in range(5):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [bytearray(8 << 20) for _ in range(6)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="tells glibc's malloc what to do")
def test_kept_memory_is_not_mapped_again():
    """Six buffers of 8 MiB, taken and freed in every step: 12,288 pages of 4 KiB."""
    returned, kept = (
        int(subprocess.run([sys.executable, "-c", FAULTS_OF_A_STEP, mode], capture_output=True, check=True).stdout)
        for mode in ("returned", "kept")
    )
    assert kept < 100 < returned
