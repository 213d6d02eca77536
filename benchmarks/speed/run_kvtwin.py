"""Child process: kvtwin from configuration and trace file to metrics. `run_kvtwin.py JSON` prints a line of JSON.

CPU-seconds of all threads and processes, around the product's own functions; reading the trace and the metrics are in,
imports are not: a run of a small trace precedes. `startup_s` is what this process took up to the first step of that.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import resource
import sys
from collections.abc import Sequence
from typing import Any

from kvtwin.composition import compose_config
from kvtwin.settings import check_settings
from kvtwin.simulating import load_cost, load_simulation, simulate_records

NUM_FUNCTIONS = 30  # of a profile


def cpu_s() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def simulated(overrides: Sequence[str]) -> dict[str, Any]:
    config = compose_config("sim", overrides)
    check_settings(config)
    start_s = cpu_s()
    experiment = load_simulation(config)
    loaded_s = cpu_s()
    records = simulate_records(experiment, load_cost(config))
    end_s = cpu_s()
    summary, run_s = records.summary, records.summary["cost"]["cpu_s"]
    return {
        "spent_before_s": start_s,
        "cpu_s": end_s - start_s,
        "load_s": loaded_s - start_s,
        "run_s": run_s,
        "metrics_s": end_s - loaded_s - run_s,
        "num_requests": summary["metrics"]["outcomes"]["finished"],
        "num_steps": summary["cost"]["num_steps"],
        "num_plans": summary["cost"]["num_plans"],
        "num_preemptions": summary["metrics"]["num_preemptions"],
        "num_evictions": summary["metrics"]["num_evictions"],
        "output_tokens": int(records.requests["num_output_tokens"].sum()),
        "hit_ratio": summary["metrics"]["prefix_hit_ratio"],
        "simulated_s": float(records.requests["finish_s"].max()),
        "ttft_mean_s": summary["metrics"]["ttft_s"]["mean"],
        "digest": summary["decisions"]["digest"],
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def profiled(overrides: Sequence[str]) -> dict[str, Any]:
    """The same, slower; the functions that took most time by themselves are printed first."""
    with cProfile.Profile() as profile:
        result = simulated(overrides)
    pstats.Stats(profile).strip_dirs().sort_stats("tottime").print_stats(NUM_FUNCTIONS)
    return result


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    warm_up = simulated(job["warm_up"])
    startup_s = warm_up["spent_before_s"] + warm_up["load_s"]
    result = profiled(job["overrides"]) if job["profile"] else simulated(job["overrides"])
    print(json.dumps(result | {"startup_s": startup_s}))
