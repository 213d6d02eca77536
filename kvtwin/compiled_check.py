"""A few runs that pass through everything that is compiled; their decisions are what machine code has to equal.

`python -m kvtwin.compiled_check` prints them as JSON: once as source, once as machine code.
"""

from __future__ import annotations

import json
import pickle
import sys
from typing import Any

from kvtwin import simulate
from kvtwin.compiled import is_used, is_wanted
from kvtwin.composition import compose_config
from kvtwin.simulating import load_simulation

_SMALL = "pool.num_blocks=600"
RUNS: tuple[tuple[str, ...], ...] = (
    ("trace=chat_sample", _SMALL),
    ("trace=agent_sessions_sample", _SMALL, "eviction=sieve", "pool.leaf_first=true"),
    ("trace=agent_sessions_sample", _SMALL, "eviction=sieve"),
    ("trace=agent_sessions_sample", _SMALL, "eviction=s3fifo"),
    ("trace=agent_sessions_sample", _SMALL, "eviction=gdsf"),
    ("trace=agent_sessions_sample", _SMALL, "pool.prefix_index=radix", "eviction=radix/lru"),
    ("trace=long_documents_sample", "pool.num_blocks=1200", "preemption.mode=swap", "pool.host_blocks=2000"),
    (
        "trace=chat_sample",
        "trace.limit=40",
        "model=gemma3_1b",
        "cost=linear",
        "pool.num_blocks=400",
        "preemption.mode=swap",
        "pool.host_blocks=2000",
    ),
    ("trace=chat_sample", _SMALL, "preset=vllm_0_33_async"),
    ("trace=chat_sample", _SMALL, "preset=faster_transformer"),
    ("trace=chat_sample", _SMALL, "trace.num_samples=2"),
    ("trace=agent_sessions_sample", _SMALL, "cluster.num_replicas=3", "routing=least_outstanding", "cluster.shards=1"),
    (
        "trace=agent_sessions_sample",
        _SMALL,
        "cluster.num_replicas=4",
        "routing=hash",
        "cluster.shards=2",
        "steps=false",
    ),
    ("trace=agent_sessions_sample", _SMALL, "cluster.num_replicas=3", "trace.arrivals=closed_loop"),
)


def outcomes() -> dict[str, Any]:
    """By run: what it decided, and what came of it."""
    found: dict[str, Any] = {}
    for overrides in RUNS:
        trace, *others = overrides
        summary = simulate(trace.removeprefix("trace="), overrides=others).summary
        found[" ".join(overrides)] = {"decisions": summary["decisions"], "metrics": summary["metrics"]}
    experiment = load_simulation(compose_config("sim", []))
    found["an experiment that another process is sent"] = str(pickle.loads(pickle.dumps(experiment)).scheduler)
    return found


if __name__ == "__main__":
    if is_wanted() and not is_used():
        sys.exit("the machine code is not found")
    json.dump(outcomes(), sys.stdout)
