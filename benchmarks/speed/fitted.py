"""What Dynamo's replay does in each case, observed once: its steps, its preemptions, and a linear model of its times.

Dynamo's report has neither. Steps and their durations come from the hook of its planner, preemptions from its log. Its
own timing (`lib/mocker/src/common/perf_model.rs`, 1.4.0) is quadratic in prefilled tokens and in the share of the pool
that is read, with 16.5 ms for any prefill at all; the linear model is the least-squares fit over the observed steps.
With it our simulator meets the same load, so it takes about as many steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from speed.contender import run_child

OBSERVED = Path(__file__).parents[1] / "results" / "sim_speed_dynamo.json"
LOG = "warn,dynamo_mocker::scheduler::vllm::core=debug"
PREEMPTED = "preempted and requeued"
COEFFICIENTS = ("constant_s", "prefill_token_s", "context_token_s")


def observed(name: str) -> dict[str, Any]:
    """What was seen in that case; empty if it never was looked at."""
    found: dict[str, Any] = json.loads(OBSERVED.read_text()).get(name, {}) if OBSERVED.exists() else {}
    return found


def observe(name: str, python: str, job: dict[str, Any]) -> dict[str, Any]:
    """Runs Dynamo once, slowly, and keeps what is learnt."""
    told, log = run_child(python, "run_dynamo.py", job | {"observe": True}, {"DYN_LOG": LOG})
    steps = np.array(told["steps"])
    work = np.column_stack([np.ones(len(steps)), steps[:, 1], steps[:, 3]])
    coefficients = np.linalg.lstsq(work, steps[:, 0], rcond=None)[0]
    seen = {
        "num_steps": len(steps) + job["num_workers"],  # each worker's last step ends after the last tick
        "num_preemptions": log.count(PREEMPTED),
        "output_tokens": told["output_tokens"],
        "cost": {key: float(f"{value:.4g}") for key, value in zip(COEFFICIENTS, coefficients, strict=True)},
        "mean_error_ratio": round(float(np.abs(work @ coefficients - steps[:, 0]).mean() / steps[:, 0].mean()), 4),
    }
    kept = json.loads(OBSERVED.read_text()) if OBSERVED.exists() else {}
    OBSERVED.write_text(json.dumps(kept | {name: seen}, indent=1, sort_keys=True) + "\n")
    return seen
