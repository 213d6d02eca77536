"""Child process: NVIDIA Dynamo's offline replay, by the Python that has `ai-dynamo`. `python run_dynamo.py JSON`.

Prints a line of JSON: CPU-seconds of all threads around the replay of a trace file (a small one precedes), and what it
did. With `observe` it is asked for its newest step every few virtual milliseconds, so that steps can be counted and
their durations learnt, which its report leaves out; its time then means nothing.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from dynamo._core import run_mocker_trace_replay
from dynamo.mocker import MockEngineArgs

TRACE_BLOCK_TOKENS = 512
TICK_MS = 5.0  # less than the shortest step, 5.74 ms: no step is overlooked


class Observer:
    """Stands where a planner would: sees the newest step at every tick, changes nothing."""

    def __init__(self) -> None:
        self.steps: list[list[float]] = []

    def initial_tick_ms(self) -> float:
        return TICK_MS

    def on_tick(self, state: dict[str, Any]) -> dict[str, Any]:
        for step in state["decode_fpm_snapshots"]:
            tokens = (step["sum_prefill_tokens"], step["num_decode_requests"], step["sum_decode_kv_tokens"])
            self.steps.append([step["wall_time"], *tokens])
        return {"target_prefill": None, "target_decode": None, "next_tick_ms": state["now_ms"] + TICK_MS}


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def replay(path: str, job: dict[str, Any], observer: Observer | None = None) -> dict[str, Any]:
    engine = MockEngineArgs(**job["engine"])
    start_s = cpu_s()
    report = run_mocker_trace_replay(
        [path],
        extra_engine_args=engine,
        num_workers=job["num_workers"],
        trace_block_size=TRACE_BLOCK_TOKENS,
        scaling_policy=observer,
    )
    return {
        "cpu_s": cpu_s() - start_s,
        "num_requests": report["completed_requests"],
        "output_tokens": report["total_output_tokens"],
        "hit_ratio": report["first_admission_prefix_cache_reused_ratio"],
        "simulated_s": report["duration_ms"] / 1e3,
        "ttft_mean_s": report["mean_ttft_ms"] / 1e3,
        "itl_mean_s": report["mean_itl_ms"] / 1e3,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    if job["observe"]:
        observer = Observer()
        result = replay(job["trace"], job, observer) | {"steps": observer.steps}
    else:
        replay(job["warm_up"], job)
        result = replay(job["trace"], job)
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
