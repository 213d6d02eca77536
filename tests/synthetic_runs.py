"""Made-up runs for tests of what reads run folders: seeded, small, shaped like a pool under pressure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.even_plans import even_plans
from core.gap_spans import GapSpans
from core.metrics import Records, RequestColumns, compute_metrics
from core.recorder import PLAN, Recorder
from core.step_totals import StepTotals
from core.units import PS_PER_S
from kvtwin.store import Run, write_run

OUTCOMES = ("finished", "rejected", "cancelled", "unfinished")
NUM_BLOCKS = 400


def request_arrays(arrival_s: Any, **columns: Any) -> dict[str, NDArray[Any]]:
    """Columns of requests that finished, from their arrival; anything else as given, counts defaulting to 0."""
    arrival_s = np.asarray(arrival_s, dtype=np.float64)
    num_requests = arrival_s.size
    counts = ("prompt", "output", "cached", "readmission_cached", "recomputed", "recomputed_evicted", "prefill")
    arrays: dict[str, Any] = {
        "request_id": np.arange(num_requests),
        "arrival_s": arrival_s,
        **{name: np.full(num_requests, np.nan) for name in ("first_scheduled_s", "first_token_s", "finish_s")},
        **{f"num_{name}_tokens": np.zeros(num_requests, dtype=np.int64) for name in counts},
        "num_preemptions": np.zeros(num_requests, dtype=np.int64),
        "outcome": np.zeros(num_requests, dtype=np.int8),
        "outcome_names": np.array(OUTCOMES),
    }
    return {name: np.asarray(columns.get(name, value)) for name, value in arrays.items()}


def step_arrays(start_s: Any, duration_s: Any, **columns: Any) -> dict[str, NDArray[Any]]:
    """Columns of steps from their times; anything else as given, counts defaulting to 0."""
    num_steps = len(start_s)
    blocks = ("referenced", "cached", "orphan", "free")
    names = [*(f"num_{name}_blocks" for name in blocks), *(f"num_{name}_blocks_after" for name in blocks[:3])]
    names += ["num_prefill_tokens", "num_decode_seqs", "decode_context_tokens", "num_running", "num_waiting"]
    arrays: dict[str, Any] = {"start_s": start_s, "duration_s": duration_s}
    arrays |= {name: np.zeros(num_steps, dtype=np.int64) for name in [*names, "num_evictions", "num_preemptions"]}
    return {name: np.asarray(columns.get(name, value)) for name, value in arrays.items()}


def totals_of(steps: dict[str, NDArray[Any]], num_filled_tokens: int = 0, num_internal_tokens: int = 0) -> StepTotals:
    """What such steps add up to, each a plan of its own with so many tokens in blocks of 16."""
    recorder, totals = Recorder(), StepTotals()
    recorder.block_size = 16
    recorder.step_internal_tokens.note(0, num_internal_tokens)
    for place in range(len(steps["start_s"])):
        row = dict.fromkeys(PLAN, 0) | {"num_steps": 1, "num_filled_tokens": num_filled_tokens}
        row["start_ps"], row["first_ps"] = (round(steps[name][place] * PS_PER_S) for name in ("start_s", "duration_s"))
        row["referenced_blocks_after"] = int(steps["num_referenced_blocks_after"][place])
        recorder.plans.new += row.values()
        recorder.step_referenced_blocks.note(place, int(steps["num_referenced_blocks"][place]))
        recorder.step_cached_blocks.note(place, int(steps["num_cached_blocks"][place]))
        recorder.cached_blocks_after.note(place, int(steps["num_cached_blocks_after"][place]))
    totals.add(even_plans(recorder), recorder)
    return totals


def gaps_of(gap_s: Any, multiplicity: Any) -> GapSpans:
    """Gaps of these lengths, each so many times."""
    gap_ps = np.round(np.asarray(gap_s, dtype=np.float64) * PS_PER_S).astype(np.int64)
    return GapSpans(gap_ps, np.zeros_like(gap_ps), np.ones_like(gap_ps), np.asarray(multiplicity, dtype=np.int64))


def synthetic_run(path: Path, kind: str, seed: int, num_requests: int = 80, slowness: float = 1.0) -> Run:
    """A plausible run of a chat trace on a small pool; runs of different seeds share trace, pool and arrivals."""
    trace, noise = np.random.default_rng(0), np.random.default_rng(seed)
    arrival_s = np.cumsum(trace.exponential(1.2, num_requests))
    num_prompt = trace.integers(40, 320, num_requests)
    num_output = trace.integers(1, 60, num_requests)
    queue_s = (trace.gamma(1.2, 1.5, num_requests) + arrival_s * 0.02) * noise.normal(slowness, 0.06, num_requests)
    prefill_s = 0.05 + num_prompt * 0.0013 * noise.normal(slowness, 0.04, num_requests)
    tpot_s = 0.09 * noise.normal(slowness, 0.05, num_requests)
    first_token_s = arrival_s + queue_s + prefill_s
    requests = request_arrays(
        arrival_s,
        first_scheduled_s=arrival_s + queue_s,
        first_token_s=first_token_s,
        finish_s=first_token_s + (num_output - 1) * tpot_s,
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        num_cached_tokens=num_prompt // 48 * 16,
        num_preemptions=(trace.random(num_requests) > 0.9).astype(np.int64),
        num_recomputed_tokens=np.zeros(num_requests, dtype=np.int64),
    )
    gaps = {"gap_s": tpot_s, "multiplicity": num_output - 1}
    steps = _steps(requests, slowness)
    records = Records(
        requests=RequestColumns.of(requests),
        steps=[totals_of(steps)],
        gaps=[gaps_of(**gaps)],
        num_blocks=NUM_BLOCKS,
        block_size_tokens=16,
        has_prefix_information=True,
        num_evictions=1273 + seed,
    )
    summary = _summary(kind, seed, num_requests, compute_metrics(records))
    return write_run(path, summary, requests=requests, steps=steps, gaps=gaps)


def _steps(requests: dict[str, NDArray[Any]], slowness: float) -> dict[str, NDArray[Any]]:
    end_s = float(requests["finish_s"].max())
    start_s = np.arange(0.5, end_s, 0.11 * slowness)
    counts = {
        "num_waiting": _inside(requests["arrival_s"], requests["first_scheduled_s"], start_s),
        "num_running": _inside(requests["first_scheduled_s"], requests["finish_s"], start_s),
    }
    referenced = np.minimum(counts["num_running"] * 24, NUM_BLOCKS - 10)
    cached = np.minimum(np.arange(start_s.size) // 2, NUM_BLOCKS - referenced)
    return step_arrays(
        start_s,
        np.full(start_s.size, 0.1 * slowness),
        **counts,
        num_referenced_blocks=referenced,
        num_cached_blocks=cached,
        num_free_blocks=NUM_BLOCKS - referenced - cached,
        num_referenced_blocks_after=referenced,
        num_cached_blocks_after=cached,
        num_preemptions=(np.arange(start_s.size) % 97 == 96).astype(np.int64),
    )


def _inside(from_s: NDArray[Any], to_s: NDArray[Any], at_s: NDArray[Any]) -> NDArray[Any]:
    return ((from_s[:, None] <= at_s) & (at_s < to_s[:, None])).sum(axis=0)


def _summary(kind: str, seed: int, num_requests: int, metrics: dict[str, Any]) -> dict[str, Any]:
    bytes_per_token = 23_040
    return {
        "kind": kind,
        "interrupted": False,
        "config": {"pool": {"num_blocks": NUM_BLOCKS}, "eviction": {"_target_": "policies.eviction.lru.LRU"}},
        "labels": {"trace": "chat_sample", "model": "smollm2_135m", "hardware": "local", "eviction": "lru"},
        "versions": {"kvtwin": "0.1.0", "numpy": np.__version__},
        "seed": seed,
        "ignored": [],
        "trace": {"name": "chat_sample", "sha256": "c0ffee", "num_requests": num_requests, "num_dropped": {}},
        "pool": {
            "num_blocks": NUM_BLOCKS,
            "block_size_tokens": 16,
            "bytes_per_token": bytes_per_token,
            "bytes": NUM_BLOCKS * 16 * bytes_per_token,
        },
        "decisions": {"num": 4321, "digest": "5eed"},
        "metrics": metrics,
        "cost": {"wall_s": 1.0, "cpu_s": 1.0, "peak_rss_bytes": 10**8, "num_steps": 900, "num_plans": 300},
    }
