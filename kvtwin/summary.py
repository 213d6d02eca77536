"""What a run leaves behind, made from a scheduler that has run: summary and arrays."""

from __future__ import annotations

import gzip
import io
import json
import platform
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from numpy.typing import NDArray

from core.columns import gap_arrays, request_arrays, requests_of, step_arrays
from core.decision_log import DecisionLog, Event
from core.metrics import Records, RequestColumns, Slo, StepColumns, compute_metrics
from core.scheduler import Scheduler
from kvtwin.experiment import Experiment

PACKAGES = ("kvtwin", "numpy", "simpy", "hydra-core", "torch", "triton")

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
        "labels": _labels(experiment.config),
        "versions": versions(),
        "seed": experiment.seed,
        "ignored": _ignored(experiment),
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
            "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "num_steps": len(recorder.step_duration_ps),
            "num_plans": len(recorder.plan_num_steps),
        },
        "interrupted": interrupted,
        **(extra or {}),
    }
    files = {}
    if experiment.config["decisions"] == "full":
        files["decisions.jsonl.gz"] = decisions_jsonl(log)
    return RunRecords(summary, requests, steps, gaps, files)


def _labels(config: Mapping[str, Any]) -> dict[str, Any]:
    """Short names of what was chosen, from the resolved values: an override of `_target_` shows here too."""
    labels = {group: _class_name(config[group]) for group in ("eviction", "admission", "queue")}
    labels["preemption"] = str(config["preemption"].get("mode", _class_name(config["preemption"])))
    labels["model"] = config["model"]["name"]
    labels["hardware"] = config["hardware"]["name"]
    return labels


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


def _ignored(experiment: Experiment) -> list[str]:
    """Trace features that nothing here honours."""
    return ["tenant"] if experiment.trace.tenant is not None else []


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
            slo=Slo(slo["ttft_s"], slo["tpot_s"]) if has_slo else None,
        )
    )
    metrics["num_swap_fallbacks"] = recorder.num_swap_fallbacks
    return metrics


def decisions_jsonl(log: DecisionLog) -> bytes:
    """The decisions as gzipped JSON lines, one a step that decided anything; the same log gives the same bytes.

    Field names follow the recorded logs that `kvtwin parity` reads; `sched` lists admissions and prompt chunks only,
    since a running sequence that decodes gets one token in every step.
    """
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as archive:
        fields: dict[str, Any] = {}
        for step, event, request_id, value in log.rows().tolist():
            if fields.get("t") != step:
                if fields:
                    archive.write(_line(fields))
                fields = {"t": step}
            _add(fields, Event(event), request_id, value)
        if fields:
            archive.write(_line(fields))
    return buffer.getvalue()


_PER_REQUEST = {
    Event.CHUNK: "sched",
    Event.ADMIT: "hit",
    Event.RESUME: "hit",
    Event.FINISH: "fin",
    Event.PREEMPT: "preempt",
    Event.CANCEL: "abort",
    Event.REJECT: "reject",
}
_BLOCKS = {
    Event.TOUCH: "touch",
    Event.ALLOC: "alloc",
    Event.FREE: "free_blocks",
    Event.SWAP_OUT: "swap_out",
    Event.SWAP_IN: "swap_in",
    Event.COPY: "copy",
}
_BARE_BLOCKS = {Event.EVICT: "evict", Event.CACHE: "cache"}


def _add(fields: dict[str, Any], event: Event, request_id: int, value: int) -> None:
    if event in _PER_REQUEST:
        fields.setdefault(_PER_REQUEST[event], []).append([request_id, value])
    elif event in _BARE_BLOCKS:
        fields.setdefault(_BARE_BLOCKS[event], []).append(value)
    else:
        rows = fields.setdefault(_BLOCKS[event], [])
        if rows and rows[-1][0] == request_id:
            rows[-1][1].append(value)
        else:
            rows.append([request_id, [value]])


def _line(fields: Mapping[str, Any]) -> bytes:
    return (json.dumps(fields, separators=(",", ":")) + "\n").encode()
