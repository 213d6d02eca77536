"""Child process: one of our eviction policies over a stream of block references. `run_blocks.py JSON` prints a line.

From the file to the number of misses, as libCacheSim reads and counts.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

from kvtwin.block_replay import Mode, replay_blocks
from kvtwin.policy_words import policy_choices
from traces.block_references import block_references
from traces.reading import read_trace


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def replayed(path: str, policy: str, capacity_blocks: int) -> dict[str, Any]:
    start_s = cpu_s()
    references = block_references(read_trace(path))
    loaded_s = cpu_s()
    (choice,) = policy_choices(policy)
    result = replay_blocks(references, choice.make, capacity_blocks, Mode.PLAIN)
    end_s = cpu_s()
    return {
        "cpu_s": end_s - start_s,
        "load_s": loaded_s - start_s,
        "run_s": end_s - loaded_s,
        "num_requests": references.num_references,
        "num_misses": result.miss_blocks,
        "hit_ratio": result.hit_blocks / references.num_references,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    replayed(job["warm_up"], job["policy"], job["capacity_blocks"])
    print(json.dumps(replayed(job["trace"], job["policy"], job["capacity_blocks"])))
