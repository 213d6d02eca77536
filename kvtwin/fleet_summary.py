"""How a fleet's work was spread over its replicas: the block `fleet` of a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from core.step_totals import StepTotals
from kvtwin.experiment import Experiment
from kvtwin.replica_records import ReplicaRecords

SPREAD = ("num_requests", "prompt_tokens", "output_tokens", "referenced_blocks")


def fleet_block(experiment: Experiment, replicas: Sequence[ReplicaRecords]) -> dict[str, Any]:
    """A list for each figure, one entry a replica, and `imbalance`: the greatest over the mean (1: none at all).

    `referenced_blocks` is the mean over the time of the whole run.
    """
    columns = _columns(replicas)
    return {
        "num_replicas": len(replicas),
        "routing": str(experiment.config["routing"]["_target_"]),
        "imbalance": {name: _imbalance(columns[name]) for name in SPREAD},
        "replicas": columns,
    }


def _columns(replicas: Sequence[ReplicaRecords]) -> Mapping[str, list[Any]]:
    prompts = [int(each.requests["num_prompt_tokens"].sum()) for each in replicas]
    hits = [int(each.requests["num_cached_tokens"].sum()) for each in replicas]
    return {
        "num_requests": [len(each.requests["request_id"]) for each in replicas],
        "prompt_tokens": prompts,
        "output_tokens": [int(each.requests["num_output_tokens"].sum()) for each in replicas],
        "prefix_hit_tokens": hits,
        "referenced_blocks": _referenced_blocks([each.totals for each in replicas]),
        "num_evictions": [each.num_evictions for each in replicas],
        "num_preemptions": [int(each.requests["num_preemptions"].sum()) for each in replicas],
        "num_steps": [each.num_steps for each in replicas],
        "decisions": [each.digest for each in replicas],
    }


def _referenced_blocks(fleet: Sequence[StepTotals]) -> list[float]:
    """Time means over the time from the first step of any replica to the last end of one."""
    begun = [(steps.start_ps, steps.end_ps) for steps in fleet if steps.start_ps is not None]
    if not begun:
        return [0.0] * len(fleet)
    span_ps = max(end_ps for _, end_ps in begun) - min(start_ps for start_ps, _ in begun)
    return [steps.referenced.block_ps / span_ps for steps in fleet]


def _imbalance(values: Sequence[float]) -> float | None:
    """None where there is nothing to spread."""
    mean = float(np.mean(values))
    return float(max(values)) / mean if mean else None
