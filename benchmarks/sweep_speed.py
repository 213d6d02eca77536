"""What a sweep of a hundred small jobs costs: our launcher and Hydra's basic one. `python benchmarks/sweep_speed.py`

Whole commands, start-up included, in turns: wall time, and CPU time of all their processes. Medians of the rounds; the
table goes to benchmarks/results/sweep_speed.md.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "sweep_speed.md"
GRID = (
    *("-m", "eviction=lru,fifo,clock,sieve,random", "pool.num_blocks=range(256,2256,100)"),
    *("trace=agent_sessions_sample", "trace.limit=50"),
)
LAUNCHERS = {
    "ours, all cores": (),
    "ours, one process": ("hydra.launcher.processes=1",),
    "Hydra's basic": ("hydra/launcher=basic",),
}


def cost_s(words: tuple[str, ...]) -> tuple[float, float]:
    """(wall, CPU) seconds of one command. Raises CalledProcessError where it fails."""
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "kvtwin.app", "sim", *words, *GRID]
        finished = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)
    wall_s, after = time.perf_counter() - start_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(finished.stdout.splitlines()) == 3 + 100
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in LAUNCHERS}
    for _ in range(rounds):
        for name, words in LAUNCHERS.items():
            costs[name].append(cost_s(words))
            print(name, *(f"{value:.1f} s" for value in costs[name][-1]), file=sys.stderr)
    basic_cpu_s = median(cpu_s for _, cpu_s in costs["Hydra's basic"])
    lines = [
        f"A hundred jobs of 50 requests, {os.cpu_count()} cores, medians of {rounds} rounds in turns "
        "(`python benchmarks/sweep_speed.py`).",
        "",
        "| launcher | wall | CPU of all processes | CPU beside basic |",
        "| --- | --- | --- | --- |",
    ]
    for name, each in costs.items():
        wall_s, cpu_s = (median(column) for column in zip(*each, strict=True))
        lines.append(f"| {name} | {wall_s:.1f} s | {cpu_s:.1f} s | {cpu_s / basic_cpu_s:.2f} |")
    RESULT.write_text("\n".join(lines) + "\n")
    print(RESULT.read_text())


if __name__ == "__main__":
    main()
