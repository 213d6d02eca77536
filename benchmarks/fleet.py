"""What a request costs in fleets of many replicas, and what a simulated day of one costs.

    python benchmarks/fleet.py                                 # 64 replicas beside one, by routing policy
    python benchmarks/fleet.py --requests 15625 --no-steps --rounds 1 --routings least_outstanding    # a million
    python benchmarks/fleet.py --day 20                        # a day of 20 replicas with 10,000 requests each
    python benchmarks/fleet.py --day 1000 --shards 2           # of 1,000 replicas and 10 million requests

Requests have the lengths of the Azure conversation trace (recipe azure_conv_like), replicas the same load, and caching
is off. CPU-seconds of all processes, from the trace in memory to the metrics, decisions digested; the cases take
turns, and the median is told. Nothing is extrapolated.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import kvtwin
from kvtwin.summary import cpu_time_s
from traces.generate import generate
from traces.recipe import load_recipe
from traces.schema import Trace

RESULT = Path(__file__).parent / "results" / "fleet.json"
NUM_REPLICAS = 64
RATE_RPS = 6.45  # of each replica: light for the cost model below
DAY_S = 86_400
REQUESTS_A_DAY = 10_000  # of each replica
COST = {"constant_s": 0.006, "prefill_token_s": 4e-5, "context_token_s": 3e-8}
APART = ("hash", "round_robin")
ON_ONE_CLOCK = ("least_outstanding", "power_of_two", "session_affinity", "cache_aware", "prefix_aware", "least_kv_use")


def lengths(num_requests: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompt and output tokens: those of 10,000 generated requests, drawn over and over."""
    recipe, path = load_recipe("azure_conv_like")
    base = generate(recipe, 10_000, 0, path.name)
    rows = np.random.default_rng(seed).integers(0, base.num_requests, num_requests)
    return base.num_prompt_tokens[rows], base.num_output_tokens[rows]


def poisson(num_requests: int, rate_rps: float, seed: int = 0) -> Trace:
    """Arrivals in whole milliseconds; sessions of ten requests on average, of which nobody waits for another."""
    source = np.random.default_rng(seed)
    gaps_ms = source.exponential(1_000 / rate_rps, num_requests)
    prompts, outputs = lengths(num_requests, seed)
    sessions = source.integers(0, max(num_requests // 10, 1), num_requests)
    arrival_ps = np.cumsum(gaps_ms).astype(np.int64) * 1_000_000_000
    return Trace("poisson", arrival_ps, prompts, outputs, session_id=sessions)


def simulated(trace: Trace, num_replicas: int, routing: str, shards: int | str = 1, **choices: Any) -> dict[str, Any]:
    """CPU-seconds, and what was done for them."""
    gc.collect()  # what the run before left behind
    start_s = cpu_time_s()
    run = kvtwin.simulate(
        trace,
        cluster={"num_replicas": num_replicas, "shards": shards},
        routing=routing,
        cost="linear",
        overrides=[f"cost.{name}={value}" for name, value in COST.items()],
        pool={"num_blocks": 27_000},
        scheduler={"max_num_seqs": 128, "max_batch_tokens": 4_096, "prefix_caching": False},
        **choices,
    )
    cost = run.summary["cost"]
    return {
        "cpu_s": cpu_time_s() - start_s,
        "num_requests": trace.num_requests,
        "num_steps": cost["num_steps"],
        "num_plans": cost["num_plans"],
        "peak_rss_bytes": cost["peak_rss_bytes"],
        "finished": run.summary["metrics"]["outcomes"]["finished"],
    }


def compare_routings(
    requests_a_replica: int, num_rounds: int, routings: Sequence[str], steps: bool
) -> Iterator[dict[str, Any]]:
    """One replica serves as many requests as all the others together: what a run costs once is shared by as many."""
    one = poisson(requests_a_replica * NUM_REPLICAS, RATE_RPS)
    many = poisson(requests_a_replica * NUM_REPLICAS, RATE_RPS * NUM_REPLICAS)
    found: dict[str, list[dict[str, Any]]] = {}
    simulated(poisson(20, RATE_RPS), 2, "least_outstanding")  # what is imported and made once
    for _ in range(num_rounds):
        found.setdefault("one replica", []).append(simulated(one, 1, "round_robin", steps=steps))
        for routing in routings:
            found.setdefault(routing, []).append(simulated(many, NUM_REPLICAS, routing, steps=steps))
    base_us = 0.0
    for name, runs in found.items():
        us = median(run["cpu_s"] for run in runs) / runs[0]["num_requests"] * 1e6
        base_us = base_us or us
        yield {"case": name, "us_a_request": us, "ratio": us / base_us, **runs[0], "rounds": len(runs)}


def day(num_replicas: int, shards: int, routing: str) -> Iterator[dict[str, Any]]:
    num_requests = num_replicas * REQUESTS_A_DAY
    trace = poisson(num_requests, num_requests / DAY_S)
    run = simulated(trace, num_replicas, routing, shards, steps=False)
    yield {"case": f"a day of {num_replicas} replicas", "us_a_request": run["cpu_s"] / num_requests * 1e6, **run}


def main() -> int:
    parser = argparse.ArgumentParser(description="What a request costs in fleets.")
    parser.add_argument("--requests", type=int, default=500, help="of each replica (default 500)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--routings", nargs="+", default=(*APART, *ON_ONE_CLOCK), metavar="NAME")
    parser.add_argument("--no-steps", action="store_true", help="keep no row a step, as a day does: for long runs")
    parser.add_argument("--day", type=int, metavar="REPLICAS", help="a day of so many replicas, instead")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--routing", default="hash", help="of the day (default hash, by session)")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = []
    cases = (
        day(options.day, options.shards, options.routing)
        if options.day
        else compare_routings(options.requests, options.rounds, options.routings, not options.no_steps)
    )
    for row in cases:
        rows.append(row)
        ratio = f"{row['ratio']:.2f} x" if "ratio" in row else ""
        print(
            f"{row['case']:20} {row['us_a_request']:8.1f} us a request  {ratio:8} {row['cpu_s']:8.2f} CPU-s, "
            f"{row['num_requests']:,} requests, {row['num_steps']:,} steps, {row['peak_rss_bytes'] / 1e6:,.0f} MB",
            flush=True,
        )
    options.out.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
