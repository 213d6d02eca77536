"""How this process uses the CPU: how many threads run at once, and whether freed memory stays mapped."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # malloc.h of glibc
_MOST_MMAP_THRESHOLD_BYTES = 32 << 20  # glibc accepts no more
_KEPT_BYTES = 1 << 30


class UsableCpus(NamedTuple):
    """How many CPUs' worth of time this process may use, and what says so."""

    number: float
    limit: str


def usable_cpus(cgroup_root: Path = Path("/sys/fs/cgroup"), own_cgroup: Path = Path("/proc/self/cgroup")) -> UsableCpus:
    """The least of the machine's CPUs, this process's affinity, and the quotas of its control groups."""
    limits = [UsableCpus(os.cpu_count() or 1, "this machine's CPUs")]
    if hasattr(os, "sched_getaffinity"):
        limits.append(UsableCpus(len(os.sched_getaffinity(0)), "this process's CPU affinity"))
    limits += [UsableCpus(quota, "its control group's CPU quota") for quota in _quotas(cgroup_root, own_cgroup)]
    return min(limits, key=lambda limit: limit.number)


def _quotas(root: Path, own: Path) -> Iterator[float]:
    """CPUs that the control groups above this process grant it, of version 2 and of version 1."""
    try:
        groups = [line.split(":", 2)[2].lstrip("/") for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        groups = []
    for group in {"", *groups}:
        for folder in (root / group, *(root / group).parents):
            if not folder.is_relative_to(root):
                break
            yield from _quota(folder / "cpu.max")
            yield from _quota(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
    yield from _quota(root / "cpu" / "cpu.cfs_quota_us", root / "cpu" / "cpu.cfs_period_us")


def _quota(*files: Path) -> Iterator[float]:
    """Quota over period, read from one file or two; nothing where there is none (`max`, -1) or no such file."""
    try:
        quota_us, period_us = " ".join(file.read_text() for file in files).split()
        if float(quota_us) > 0 and float(period_us) > 0:
            yield float(quota_us) / float(period_us)
    except (OSError, ValueError):
        return


def oversubscription(num_threads: int, environment: Mapping[str, str], cpus: UsableCpus) -> str:
    """What to say where more threads would run than CPUs; empty where they fit.

    Threads of OpenMP wait for each other after every operation: with one too many, each wait can last a time slice.
    """
    asked = {"engine.threads": num_threads}
    if (outside := environment.get("OMP_NUM_THREADS", "")).isdecimal():
        asked["OMP_NUM_THREADS"] = int(outside)
    name, most = max(asked.items(), key=lambda item: item[1])
    if most <= cpus.number:
        return ""
    return f"{name}={most}, but {cpus.limit}: {cpus.number:g}; threads that take turns can make steps many times slower"


def keep_freed_memory() -> None:
    """Lets malloc keep what is freed, up to 1 GiB, instead of giving it back after every large tensor.

    A step frees and takes the same megabytes again and again; returned to the system, each page of them is cleared and
    mapped anew. glibc only; elsewhere nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for option, num_bytes in (
        (_M_MMAP_THRESHOLD, _MOST_MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, _KEPT_BYTES),
        (_M_TOP_PAD, _MOST_MMAP_THRESHOLD_BYTES),
    ):
        mallopt(option, num_bytes)
