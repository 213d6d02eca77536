"""What a run leaves behind, made from a scheduler that has run: summary and arrays."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from core.columns import charge_arrays, gap_arrays, request_arrays, requests_of, step_arrays
from core.metrics import Records, RequestColumns, Slo, StepColumns, WasteColumns, compute_metrics
from core.scheduler import Scheduler
from kvtwin.decisions_file import DECISIONS_FILE, decisions_jsonl
from kvtwin.experiment import Experiment
from kvtwin.store import Run, npz_bytes, write_run

PACKAGES = ("kvtwin", "numpy", "simpy", "hydra-core", "torch", "triton")
ATTRIBUTION_FILE = "attribution.npz"
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # getrusage(2) of macOS and of Linux differ

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Cost:
    """What the run itself cost on this machine."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class RunRecords:
    """A run before it is written: summary, arrays, further files."""

    summary: dict[str, Any]
    requests: Arrays
    steps: Arrays
    gaps: Arrays
    files: dict[str, bytes]

    def write(self, folder: Path) -> Run:
        """Puts the run into its folder."""
        return write_run(
            folder, self.summary, requests=self.requests, steps=self.steps, gaps=self.gaps, files=self.files
        )


def collect_records(
    experiment: Experiment,
    scheduler: Scheduler,
    kind: str,
    cost: Cost,
    *,
    interrupted: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> RunRecords:
    """Summary (architecture: `kvtwin.run/1`) and arrays of a run that has ended."""
    recorder, log = scheduler.recorder, scheduler.log
    taken = requests_of(scheduler)
    requests = request_arrays(taken, experiment.trace.num_requests)
    steps = step_arrays(recorder, taken, experiment.pool.num_blocks)
    gaps = gap_arrays(recorder)
    summary = {
        "kind": kind,
        "config": experiment.config,
        "labels": _labels(experiment),
        "versions": versions(),
        "seed": experiment.seed,
        "ignored": _ignored(experiment, scheduler),
        "trace": _trace_block(experiment),
        "replay": {
            "arrivals": experiment.replay.arrivals.value,
            "max_model_len": experiment.replay.max_model_len,
            "outputs_as_recorded": experiment.replay.outputs_as_recorded,
        },
        "pool": _pool_block(experiment),
        "decisions": {"num": len(log), "digest": log.digest() if len(log) else None},
        "metrics": _metrics(experiment, scheduler, requests, steps, gaps),
        "cost": {
            "wall_s": cost.wall_s,
            "cpu_s": cost.cpu_s,
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MAXRSS_UNIT_BYTES,
            "num_steps": len(recorder.step_duration_ps),
            "num_plans": len(recorder.plan_num_steps),
        },
        "interrupted": interrupted,
        **(extra or {}),
    }
    files = {}
    attribution = scheduler.tables.pool.attribution
    if attribution is not None and attribution.num_costly:
        files[ATTRIBUTION_FILE] = npz_bytes(charge_arrays(attribution.charges))
    if experiment.config["decisions"] == "full":
        files[DECISIONS_FILE] = decisions_jsonl(log)
    return RunRecords(summary, requests, steps, gaps, files)


def _labels(experiment: Experiment) -> dict[str, Any]:
    """Short names of what was chosen, from the resolved values: an override of `_target_` shows here too."""
    config = experiment.config
    labels = {"trace": experiment.trace.name}
    labels |= {group: _class_name(config[group]) for group in ("eviction", "admission", "queue")}
    labels["preemption"] = str(config["preemption"].get("mode", _class_name(config["preemption"])))
    return labels | {"model": experiment.model.name, "hardware": experiment.hardware.name}


def _class_name(config: Mapping[str, Any]) -> str:
    return str(config["_target_"]).rpartition(".")[2].lower()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _ignored(experiment: Experiment, scheduler: Scheduler) -> list[str]:
    """Trace features that this run does not honour."""
    trace = experiment.trace
    tells_apart = any(getattr(policy, "tells_categories_apart", False) for policy in scheduler.policies.others)
    gone_by = {column for policy in scheduler.policies.all() for column in policy.goes_by}
    tenants_are_kinds = tells_apart and trace.kind is trace.tenant
    ignored = {
        "priority": trace.priority is not None and "priority" not in gone_by,
        "tenant": trace.tenant is not None and "tenant" not in gone_by and not tenants_are_kinds,
        "deadline_ps": trace.deadline_ps is not None,  # no policy here knows deadlines
        "category": trace.category is not None and not tells_apart,
        "session_id": trace.session_id is not None and trace.parent is None,  # turns are linked by `parent`
        "output_segments": trace.output_segments is not None and not experiment.replay.outputs_as_recorded,
    }
    return [feature for feature, is_ignored in ignored.items() if is_ignored]


def _trace_block(experiment: Experiment) -> dict[str, Any]:
    trace = experiment.trace
    return {
        "name": trace.name,
        "sha256": trace.sha256,
        "num_requests": trace.num_requests,
        "num_dropped": dict(trace.num_dropped),
    }


def _pool_block(experiment: Experiment) -> dict[str, Any]:
    bytes_per_token = experiment.model.kv_bytes_per_token()
    num_blocks, size = experiment.pool.num_blocks, experiment.pool.block_size_tokens
    return {
        "num_blocks": num_blocks,
        "block_size_tokens": size,
        "host_blocks": experiment.pool.host_blocks,
        "bytes_per_token": bytes_per_token,
        "bytes": None if num_blocks is None else num_blocks * size * bytes_per_token,
    }


def _metrics(
    experiment: Experiment, scheduler: Scheduler, requests: Arrays, steps: Arrays, gaps: Arrays
) -> dict[str, Any]:
    recorder = scheduler.recorder
    attribution = scheduler.tables.pool.attribution
    num_swapped = sum(recorder.plan_num_swapped_blocks)
    block_bytes = experiment.model.kv_bytes_per_token() * experiment.pool.block_size_tokens
    slo = experiment.config["slo"]
    has_slo = slo["ttft_s"] is not None and slo["tpot_s"] is not None
    metrics = compute_metrics(
        Records(
            RequestColumns.of(requests),
            StepColumns.of(steps),
            gaps["gap_s"],
            gaps["multiplicity"],
            experiment.pool.num_blocks,
            experiment.pool.block_size_tokens,
            experiment.trace.has_prefix_information and experiment.prefix_caching,
            swapped_bytes=num_swapped * block_bytes,
            num_evictions=scheduler.tables.pool.num_evictions,
            num_costly_evictions=None if attribution is None else attribution.num_costly,
            counts_orphans=scheduler.tables.pool.index.is_linked and not scheduler.tables.eviction_is_prefix_closed,
            waste=WasteColumns.of(steps),
            num_shared_references=steps["num_shared_references"],
            num_waiting=steps["num_waiting"],
            num_running=steps["num_running"],
            slo=Slo(slo["ttft_s"], slo["tpot_s"]) if has_slo else None,
        )
    )
    metrics["num_swap_fallbacks"] = recorder.num_swap_fallbacks
    # Only runs that must stay whole ever move.
    metrics["num_moved_blocks"] = sum(recorder.plan_num_moved_blocks) if scheduler.tables.is_contiguous else None
    return metrics
