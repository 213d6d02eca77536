"""A fleet's steps as charts over time can draw them: sums over its replicas at evenly spaced moments."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvtwin.report.series import MAX_POINTS, rows_at
from kvtwin.store import Run

_LEVELS = ("num_waiting", "num_running", "num_referenced_blocks", "num_cached_blocks")

Ints = NDArray[np.int64]


def on_one_clock(run: Run) -> Run:
    """The same run with the steps of all replicas as one series; a run of one replica as it is.

    At each moment every replica stands as its last step by then has it, or left it where that has ended.
    """
    replica = run.steps.get("replica")
    if replica is None or not replica.size:
        return run
    start_s, end_s = run.steps["start_s"], run.steps["start_s"] + run.steps["duration_s"]
    moments_s = np.linspace(start_s.min(), end_s.max(), MAX_POINTS, endpoint=False)
    steps = {
        "start_s": moments_s,
        "duration_s": np.full(MAX_POINTS, moments_s[1] - moments_s[0]),
        "num_preemptions": _summed(run.steps["num_preemptions"], start_s, moments_s),
    }
    bounds = np.flatnonzero(np.diff(replica, prepend=-1, append=replica[-1] + 1))
    rows = [slice(first, last) for first, last in pairwise(bounds)]
    levels = {name: np.sum([_level(run, name, part, moments_s) for part in rows], axis=0) for name in _LEVELS}
    num_blocks = run.summary["pool"]["num_blocks"]
    if num_blocks is not None:
        used = levels["num_referenced_blocks"] + levels["num_cached_blocks"]
        levels["num_free_blocks"] = num_blocks * run.summary["fleet"]["num_replicas"] - used
    return replace(run, steps=steps | levels)


def _level(run: Run, name: str, rows: slice, moments_s: NDArray[np.float64]) -> Ints:
    """One replica's count at each moment, [MAX_POINTS]; 0 before its first step."""
    start_s, column = run.steps["start_s"][rows], run.steps[name][rows]
    at = rows_at(start_s, moments_s)
    runs = moments_s < (start_s + run.steps["duration_s"][rows])[at]
    after = run.steps.get(f"{name}_after")
    left = np.zeros_like(column) if after is None else after[rows]
    return np.where(moments_s < start_s[0], 0, np.where(runs, column[at], left[at]))


def _summed(column: Ints, start_s: NDArray[np.float64], moments_s: NDArray[np.float64]) -> Ints:
    """What happened in the steps that began since the moment before, [MAX_POINTS]."""
    sums = np.zeros(len(moments_s), dtype=np.int64)
    np.add.at(sums, rows_at(moments_s, start_s), column)
    return sums
