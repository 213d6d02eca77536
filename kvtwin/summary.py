"""What a run leaves behind, made from the records of its replicas: summary and arrays."""

from __future__ import annotations

import math
import platform
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

from core.metrics import Records, RequestColumns, Slo, compute_metrics
from kvtwin.decisions_file import DECISIONS_FILE
from kvtwin.experiment import Experiment
from kvtwin.fleet_summary import fleet_block
from kvtwin.lazy_arrays import Arrays, LazyArrays
from kvtwin.merged_records import RequestTable, combined_digest, concatenated, total
from kvtwin.replica_records import ReplicaRecords
from kvtwin.store import Run, npz_bytes, write_run

PACKAGES = ("kvtwin", "numpy", "simpy", "hydra-core", "torch", "triton")
ATTRIBUTION_FILE = "attribution.npz"
MAXRSS_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # getrusage(2) of macOS and of Linux differ


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
    replicas: Sequence[ReplicaRecords],
    kind: str,
    cost: Cost,
    *,
    interrupted: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> RunRecords:
    """Summary (architecture: `kvtwin.run/1`) and arrays of a run that has ended.

    Columns say of which replica they are, and the summary has a block `fleet`, only where there are several.
    """
    requests, steps, gaps = _merged(experiment, replicas)
    summary = {
        "kind": kind,
        "config": experiment.config,
        "labels": _labels(experiment),
        "versions": versions(),
        "seed": experiment.seed,
        "ignored": _ignored(experiment, replicas[0]),
        "trace": _trace_block(experiment),
        "replay": {
            "arrivals": experiment.replay.arrivals.value,
            "max_model_len": experiment.replay.max_model_len,
            "outputs_as_recorded": experiment.replay.outputs_as_recorded,
        },
        "pool": _pool_block(experiment),
        "decisions": {"num": total(each.num_decisions for each in replicas), "digest": combined_digest(replicas)},
        "metrics": _metrics(experiment, replicas, requests),
        "cost": {
            "wall_s": cost.wall_s,
            "cpu_s": cost.cpu_s,
            "peak_rss_bytes": _peak_rss_bytes(),
            "num_steps": sum(each.num_steps for each in replicas),
            "num_plans": sum(each.num_plans for each in replicas),
            "num_refused_spans": sum(each.num_refused_spans for each in replicas),
        },
        "interrupted": interrupted,
        **({"fleet": fleet_block(experiment, replicas)} if len(replicas) > 1 else {}),
        **(extra or {}),
    }
    return RunRecords(summary, requests, steps, gaps, _files(replicas))


def _merged(experiment: Experiment, replicas: Sequence[ReplicaRecords]) -> tuple[Arrays, Arrays, Arrays]:
    """Requests, steps and gaps of all replicas. Those of one are not copied, if all of its requests arrived."""
    if len(replicas) == 1 and len(replicas[0].requests["request_id"]) == experiment.trace.num_requests:
        return replicas[0].requests, replicas[0].steps, replicas[0].gaps
    table = RequestTable(experiment.trace.num_requests)
    for number, each in enumerate(replicas):
        table.add(number, each.requests)
    if len(replicas) == 1:
        del table.arrays["replica"]
        return table.arrays, replicas[0].steps, replicas[0].gaps
    steps, gaps = ([getattr(each, name) for each in replicas] for name in ("steps", "gaps"))
    return table.arrays, LazyArrays(partial(concatenated, steps)), LazyArrays(partial(concatenated, gaps))


def _files(replicas: Sequence[ReplicaRecords]) -> dict[str, bytes]:
    """Further members of the run folder: who paid for which evictions, and the decisions of each replica."""
    files = {}
    charges = [each.charges for each in replicas if each.charges is not None]
    if charges:
        files[ATTRIBUTION_FILE] = npz_bytes({name: np.concatenate([c[name] for c in charges]) for name in charges[0]})
    for number, each in enumerate(replicas):
        if each.decisions is not None:
            files[DECISIONS_FILE if len(replicas) == 1 else f"replica-{number}.{DECISIONS_FILE}"] = each.decisions
    return files


def _labels(experiment: Experiment) -> dict[str, Any]:
    """Short names of what was chosen, from the resolved values: an override of `_target_` shows here too."""
    config = experiment.config
    labels: dict[str, Any] = {"trace": experiment.trace.name}
    labels |= {group: _class_name(config[group]) for group in ("eviction", "admission", "queue")}
    labels["preemption"] = str(config["preemption"].get("mode", _class_name(config["preemption"])))
    if experiment.fleet.num_replicas > 1:
        labels["routing"] = _class_name(config["routing"])
        labels["num_replicas"] = experiment.fleet.num_replicas
    return labels | {"model": experiment.model.name, "hardware": experiment.hardware.name}


def _class_name(config: Mapping[str, Any]) -> str:
    return str(config["_target_"]).rpartition(".")[2].lower()


def cpu_time_s() -> float:
    """Of this process and of those it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _peak_rss_bytes() -> int:
    """Of the greatest process."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return max(resource.getrusage(each).ru_maxrss for each in whose) * MAXRSS_UNIT_BYTES


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = _version(package)
        except PackageNotFoundError:
            continue
    return found


@cache
def _version(package: str) -> str:
    """As `importlib.metadata.version`, which reads the whole description like an e-mail first. Asked once a process."""
    found = distribution(package)
    _, _, rest = (found.read_text("METADATA") or "").partition("\nVersion: ")
    return rest.partition("\n")[0].strip() or found.version


def _ignored(experiment: Experiment, replica: ReplicaRecords) -> list[str]:
    """Trace features that this run does not honour."""
    trace, tells_apart, gone_by = experiment.trace, replica.tells_categories_apart, replica.goes_by
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
    num_blocks = experiment.pool.num_blocks
    return {
        "num_blocks": num_blocks,
        "block_size_tokens": experiment.pool.block_size_tokens,
        "block_layers": experiment.block_layers,
        "host_blocks": experiment.pool.host_blocks,
        "bytes_per_token": experiment.model.kv_bytes_per_token(),
        "bytes": None if num_blocks is None else num_blocks * experiment.block_bytes,
    }


def _metrics(experiment: Experiment, replicas: Sequence[ReplicaRecords], requests: Arrays) -> dict[str, Any]:
    num_swapped = sum(each.num_swapped_blocks for each in replicas)
    metrics = compute_metrics(
        Records(
            RequestColumns.of(requests),
            [each.totals for each in replicas],
            [spans for each in replicas for spans in each.gap_spans],
            experiment.pool.num_blocks,
            experiment.pool.block_size_tokens,
            experiment.trace.has_prefix_information and experiment.prefix_caching,
            swapped_bytes=num_swapped * experiment.block_bytes,
            num_evictions=sum(each.num_evictions for each in replicas),
            num_costly_evictions=total(each.num_costly_evictions for each in replicas),
            counts_orphans=replicas[0].counts_orphans,
            slo=_slo(**experiment.config["slo"]),
        )
    )
    metrics["num_swap_fallbacks"] = sum(each.num_swap_fallbacks for each in replicas)
    metrics["num_moved_blocks"] = total(each.num_moved_blocks for each in replicas)
    return metrics


def _slo(ttft_s: float | None, tpot_s: float | None) -> Slo | None:
    """None where neither latency has a limit; one that has none alone is never too long."""
    if ttft_s is None and tpot_s is None:
        return None
    return Slo(math.inf if ttft_s is None else ttft_s, math.inf if tpot_s is None else tpot_s)
