"""Claim: Mooncake's conversation trace is read in half a CPU second, a CSV of a million rows in 4 s and 400 MB.

Reads each file three times, each time in a fresh process, and prints the least CPU time (of reading alone) and the most
resident memory (of the whole process). The CSV has BurstGPT's columns and is made here; Mooncake's trace is read from
the folder given (default: ../shared/traces) and left out if it is not there. Exit status 1 if a bound is not kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

RESULT = Path(__file__).parent / "results" / "trace_reading.md"
NUM_ROWS = 1_000_000
NUM_READINGS = 3
READ = """
import json, resource, sys, time
from traces.reading import read_trace
start_s = time.process_time()
trace = read_trace(sys.argv[1])
cpu_s = time.process_time() - start_s
rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
ids = 0 if trace.hash_ids is None else len(trace.hash_ids.values)
print(json.dumps({"rows": trace.num_requests, "block ids": ids, "cpu_s": cpu_s, "rss_mb": rss_kib * 1024 / 1e6}))
"""


class Case(NamedTuple):
    """A file, and what reading it may take."""

    name: str
    path: Path
    max_cpu_s: float
    max_rss_mb: float


def cases(traces: Path, scratch: Path) -> Iterator[Case]:
    """The files that are there."""
    mooncake = traces / "mooncake" / "conversation_trace.jsonl"
    if mooncake.exists():
        yield Case("mooncake conversation", mooncake, 0.5, 400)
    else:
        print(f"left out: {mooncake} is not here", file=sys.stderr)
    yield Case("burstgpt, a million rows", write_csv(scratch / "burstgpt.csv"), 4, 400)


def write_csv(path: Path) -> Path:
    """A seeded CSV that looks like BurstGPT's."""
    random = np.random.default_rng(0)
    arrivals_s = np.cumsum(random.integers(0, 9, NUM_ROWS)).tolist()
    prompts, outputs = random.integers(1, 5000, NUM_ROWS).tolist(), random.integers(1, 900, NUM_ROWS).tolist()
    with path.open("w", encoding="utf-8") as file:
        file.write("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n")
        for arrival, prompt, output in zip(arrivals_s, prompts, outputs, strict=True):
            file.write(f"{arrival},ChatGPT,{prompt},{output},{prompt + output},Conversation log\n")
    return path


def read(case: Case) -> dict[str, Any]:
    """The row of the table for one case."""
    command = [sys.executable, "-c", READ, str(case.path)]
    folder = Path(__file__).parents[1]
    readings = [
        json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)
        for _ in range(NUM_READINGS)
    ]
    cpu_s, rss_mb = min(r["cpu_s"] for r in readings), max(r["rss_mb"] for r in readings)
    return {
        "file": case.name,
        "MB": f"{case.path.stat().st_size / 1e6:.1f}",
        "rows": f"{readings[0]['rows']:,}",
        "block ids": f"{readings[0]['block ids']:,}",
        "CPU s": f"{cpu_s:.2f}",
        "at most": f"{case.max_cpu_s:g}",
        "peak RSS MB": f"{rss_mb:.0f}",
        "at most ": f"{case.max_rss_mb:g}",
        "kept": "yes" if cpu_s <= case.max_cpu_s and rss_mb <= case.max_rss_mb else "NO",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1].parent / "shared" / "traces")
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as scratch:
        rows = [read(case) for case in cases(folder, Path(scratch))]
    table = Table(*rows[0], title="Reading traces, in a fresh process", box=MARKDOWN)
    for row in rows:
        table.add_row(*row.values())
    console = Console(width=160, record=True)
    console.print(table)
    lines = [line.strip() for line in console.export_text().splitlines()]
    RESULT.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    return 0 if all(row["kept"] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
