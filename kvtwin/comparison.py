"""Simulated against measured: the contents of `comparison.json`.

With several engine repeats the measured figure is their median, and the repeats' spread stands beside the error: an
error below the engine's own spread is not one the simulator can be blamed for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError
from core.metrics import RequestColumns
from kvtwin.agreement import ks_distance, paired_errors, relative_error, relative_spread
from kvtwin.store import Run, read_document

SCHEMA = "kvtwin.comparison/1"
COMPARISON_FILE = "comparison.json"
LATENCIES: Mapping[str, Callable[[RequestColumns], NDArray[np.float64]]] = {
    "ttft_s": RequestColumns.ttft_s,
    "tpot_s": RequestColumns.tpot_s,
    "e2e_s": RequestColumns.e2e_s,
}
SATURATION_RULE = (
    "saturated: the mean number waiting over the last third of the arrivals' time is more than twice that of the first "
    "third and more than 5 % of the requests (undefined when all arrive at once)"
)
WARM_RULE = "warm: the repeat hits more of its prompt tokens than the first repeat, by over 5 points"

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Lockstep:
    """The outcome of replaying the engine's inputs into the simulator; `first_difference` is None when identical."""

    num_decisions: int
    first_difference: str | None = None


def compare_runs(sim: Run, engine_runs: Sequence[Run], lockstep: Lockstep | None = None) -> dict[str, Any]:
    """Compare one simulated run with one or more engine repeats of the same trace.

    Raises InputError when there is no engine run, or when pools or traces differ: a wrong block count alone makes a
    latency error that no cost model could explain.
    """
    if not engine_runs:
        raise InputError("nothing to compare with: give at least one engine run")
    for engine in engine_runs:
        _check_same("pool", ("num_blocks", "block_size_tokens"), sim, engine)
        _check_same("trace", ("sha256",), sim, engine)
    return {
        "schema": SCHEMA,
        "simulated": _identity(sim),
        "measured": [_identity(engine) for engine in engine_runs],
        "capacity": {
            "simulated": sim.summary["pool"],
            "measured": engine_runs[0].summary["pool"],
            "equal": sim.summary["pool"] == engine_runs[0].summary["pool"],
        },
        "lockstep": _lockstep_block(lockstep),
        "first_difference": lockstep.first_difference if lockstep else None,
        "metrics": _compare_metrics(sim, engine_runs),
        "per_request": _compare_requests(sim, engine_runs),
        "unmatched": _unmatched(sim, engine_runs),
        "saturated": {
            "simulated": is_saturated(sim.request_columns()),
            "measured": is_saturated(engine_runs[0].request_columns()),
            "rule": SATURATION_RULE,
        },
        "warm_repeats": {"repeats": _warm_repeats(engine_runs), "rule": WARM_RULE},
    }


def read_comparison(folder: Path) -> dict[str, Any]:
    """The comparison in the folder of a validation; raises InputError for a file that is none."""
    return read_document(folder / COMPARISON_FILE, SCHEMA)


def pair_requests(sim: RequestColumns, measured: RequestColumns) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row numbers of the requests that both sides have, paired by request_id, in the order of the ids."""
    _, sim_rows, measured_rows = np.intersect1d(sim.request_id, measured.request_id, return_indices=True)
    return sim_rows, measured_rows


def is_saturated(requests: RequestColumns) -> bool | None:
    """Whether the queue grew while requests arrived, by SATURATION_RULE; None when all arrived at once, or none did."""
    arrived_s = requests.arrival_s[~np.isnan(requests.arrival_s)]
    start_s, end_s = (float(arrived_s.min()), float(arrived_s.max())) if arrived_s.size else (0.0, 0.0)
    third_s = (end_s - start_s) / 3
    if third_s == 0:
        return None
    early = _mean_waiting(requests, start_s, start_s + third_s)
    late = _mean_waiting(requests, end_s - third_s, end_s)
    return late > 2 * early and late > 0.05 * arrived_s.size


def _check_same(block: str, keys: Sequence[str], sim: Run, engine: Run) -> None:
    for key in keys:
        ours, theirs = sim.summary[block][key], engine.summary[block][key]
        if ours != theirs:
            raise InputError(
                f"cannot compare: {block}.{key} is {ours} in {sim.path} but {theirs} in {engine.path}; "
                f"run both with the same {block}"
            )


def _identity(run: Run) -> dict[str, Any]:
    return {
        "run": run.path.name if run.path else None,
        "labels": run.summary.get("labels", {}),
        "num_requests": int(run.requests["request_id"].size),
        "interrupted": run.is_interrupted,
    }


def _lockstep_block(lockstep: Lockstep | None) -> dict[str, Any] | None:
    if lockstep is None:
        return None
    return {"identical": lockstep.first_difference is None, "num_decisions": lockstep.num_decisions}


def _compare_metrics(sim: Run, engine_runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """Every figure of the `metrics` block by its dotted name, e.g. `ttft_s.p90`."""
    simulated = dict(_figures(sim.summary["metrics"]))
    repeats = [dict(_figures(engine.summary["metrics"])) for engine in engine_runs]
    names = dict.fromkeys([*simulated, *(name for repeat in repeats for name in repeat)])
    return {name: _compare_figure(simulated.get(name), [repeat.get(name) for repeat in repeats]) for name in names}


def _figures(block: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | None]]:
    for key, value in block.items():
        if isinstance(value, Mapping):
            yield from _figures(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _compare_figure(simulated: float | None, repeats: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in repeats if value is not None]
    measured = median(known) if known else None
    return {
        "simulated": simulated,
        "measured": measured,
        "error_ratio": relative_error(simulated, measured),
        "engine_spread_ratio": relative_spread(known),
    }


def median_latency(engine_runs: Sequence[Run], latency: Callable[[RequestColumns], Floats]) -> Floats:
    """A request's median latency over the repeats, [num_requests of the first repeat]; nan where none defines it."""
    first = engine_runs[0].request_columns()
    repeats = np.full((len(engine_runs), first.request_id.size), np.nan)
    for row, run in zip(repeats, engine_runs, strict=True):
        columns = run.request_columns()
        ours, theirs = pair_requests(first, columns)
        row[ours] = latency(columns)[theirs]
    middle = np.full(first.request_id.size, np.nan)
    defined = ~np.isnan(repeats).all(axis=0)  # nanmedian warns about columns that hold nothing
    middle[defined] = np.nanmedian(repeats[:, defined], axis=0)
    return middle


def _compare_requests(sim: Run, engine_runs: Sequence[Run]) -> dict[str, dict[str, float | int | None]]:
    """Per latency: errors against each request's median over the repeats, and KS against all repeats pooled."""
    simulated, measured = sim.request_columns(), engine_runs[0].request_columns()
    sim_rows, measured_rows = pair_requests(simulated, measured)
    blocks: dict[str, dict[str, float | int | None]] = {}
    for name, latency in LATENCIES.items():
        pooled = np.concatenate([latency(run.request_columns()) for run in engine_runs])
        blocks[name] = {
            **paired_errors(latency(simulated)[sim_rows], median_latency(engine_runs, latency)[measured_rows]),
            "ks_distance": ks_distance(latency(simulated), pooled),
        }
    return blocks


def _unmatched(sim: Run, engine_runs: Sequence[Run]) -> dict[str, list[int]]:
    """Ids that finished on one side only (not in the simulator, or not in every repeat); never filled with zeros."""
    ours = _finished_ids(sim)
    theirs = [_finished_ids(engine) for engine in engine_runs]
    return {
        "simulated_only": sorted(ours - theirs[0].intersection(*theirs)),
        "measured_only": sorted(theirs[0].union(*theirs) - ours),
    }


def _finished_ids(run: Run) -> set[int]:
    columns = run.request_columns()
    return set(columns.request_id[columns.ended("finished")].tolist())


def _mean_waiting(requests: RequestColumns, start_s: float, end_s: float) -> float:
    """Time-weighted mean number of requests between arrival and first schedule (or outcome) within the window."""
    left_s = np.where(np.isnan(requests.first_scheduled_s), requests.finish_s, requests.first_scheduled_s)
    left_s = np.where(np.isnan(left_s), np.inf, left_s)
    waited_s = np.clip(left_s, start_s, end_s) - np.clip(requests.arrival_s, start_s, end_s)
    return float(np.nansum(waited_s) / (end_s - start_s))


def _warm_repeats(engine_runs: Sequence[Run]) -> list[int]:
    """Repeats (counted from 0) that ran into what an earlier one left in the cache."""
    shares = [
        run.summary["metrics"]["prefix_hit_tokens"] / max(1, run.summary["metrics"]["prompt_tokens"])
        for run in engine_runs
    ]
    return [index for index, share in enumerate(shares) if share > shares[0] + 0.05]
