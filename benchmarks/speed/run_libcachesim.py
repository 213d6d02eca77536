"""Child process: libCacheSim over a stream of block references, by the Python that has `libcachesim`. Prints a line.

Its reader and its loop are compiled; no Python runs between two references.
"""

from __future__ import annotations

import json
import resource
import sys

import libcachesim

COLUMNS = {"time_field": 1, "obj_id_field": 2, "obj_size_field": 3}


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    job = json.loads(sys.argv[1])
    start_s = cpu_s()
    layout = libcachesim.ReaderInitParam(has_header=True, has_header_set=True, obj_id_is_num_set=True)
    for field, column in COLUMNS.items():
        setattr(layout, field, column)
    reader = libcachesim.TraceReader(job["trace"], libcachesim.TraceType.CSV_TRACE, layout)
    cache = getattr(libcachesim, job["peer_policy"])(job["capacity_blocks"], hashpower=16)
    miss_ratio, _ = cache.process_trace(reader)
    end_s = cpu_s()
    num_references = reader.get_num_of_req()
    result = {
        "cpu_s": end_s - start_s,
        "num_requests": num_references,
        "num_misses": round(miss_ratio * num_references),
        "hit_ratio": 1 - miss_ratio,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
