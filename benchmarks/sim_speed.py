"""How much CPU time a simulation takes, beside compiled simulators that do equal work.

    python benchmarks/sim_speed.py --case light saturated pressure --dynamo-python /path/to/venv/bin/python

Each case is a trace that is replayed by kvtwin and, where they are installed, by its peers, in processes of their own,
in turns. Told is the median of the CPU-seconds of all threads around the replay (reading the trace and computing the
metrics are in, imports are not), and of the whole process. Steps, preemptions and output tokens of both show that they
did equal work: a case in which ours produced other tokens or took less than 0.9 of Dynamo's steps fails.

The peers, each in an environment of its own: `pip install ai-dynamo==1.4.0 ai-dynamo-runtime==1.4.0` for
`--dynamo-python`, `pip install libcachesim==0.3.5` for `--libcachesim-python`. An absent one is left out. How many
steps Dynamo takes, and a linear cost like its own, is looked up in results/sim_speed_dynamo.json; `--observe` learns
it anew (tens of seconds a case). Results of the cases that ran go into results/sim_speed.json, with a table
(sim_speed.md) and a chart of the main ones beside Dynamo (docs/sim-speed.svg).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from speed.cases import REPLAYS, ReplayCase
from speed.chart import svg
from speed.contender import DYNAMO, OURS, ROOT, CannotMeasure, Result, Tools
from speed.screen import markdown, phases, table
from speed.streams import STREAMS, StreamCase

from kvtwin.arguments import count

CASES: tuple[ReplayCase | StreamCase, ...] = (*REPLAYS, *STREAMS)
RESULT = Path(__file__).parent / "results" / "sim_speed.json"
TABLE = RESULT.with_suffix(".md")
HEADING = (
    "Written by `python benchmarks/sim_speed.py`, which says what is measured; when and where is in sim_speed.json.\n"
)
CHART = ROOT / "docs" / "sim-speed.svg"
QUICK = ("light", "saturated", "pressure", "caching")
DRAWN = (*QUICK, "mooncake_512_lru", "mooncake_16_lru")
TIMES = ("cpu_s", "startup_s", "load_s", "run_s", "metrics_s", "process_cpu_s", "peak_rss_bytes")


def measured(case: ReplayCase | StreamCase, tools: Tools, num_rounds: int) -> dict[str, Result]:
    """The median of each time, by contender; everything else is the same in all rounds."""
    contenders = case.contenders(tools)
    rounds: dict[str, list[Result]] = {name: [] for name in contenders}
    for _ in range(num_rounds):
        for name, run in contenders.items():
            rounds[name].append(run())
    return {name: _medians(results) for name, results in rounds.items()}


def _medians(results: list[Result]) -> Result:
    times = {key: round(median(result[key] for result in results), 4) for key in TIMES if key in results[0]}
    return results[0] | times | {"cpu_s_of_rounds": [round(result["cpu_s"], 4) for result in results]}


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return {
        "date": time.strftime("%Y-%m-%d"),
        "revision": revision.strip(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "num_cpus": os.cpu_count(),
    }


def keep(results: dict[str, dict[str, Result]], num_rounds: int) -> None:
    """Puts the cases that ran into the file beside those of earlier; tells and draws all that are known."""
    known = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    about = machine() | {"num_rounds": num_rounds}
    known |= {name: {"about": about, "results": found} for name, found in results.items()}
    put(RESULT, json.dumps(known, indent=1) + "\n")
    cases = {case.name: known[case.name]["results"] for case in CASES if case.name in known}
    put(TABLE, f"{HEADING}\n{markdown(cases)}")
    titles = {case.name: case.title for case in CASES}
    drawn = {titles[name]: cases[name] for name in DRAWN if DYNAMO in cases.get(name, {})}
    if drawn:
        put(CHART, svg(drawn))


def put(path: Path, text: str) -> None:
    """Whole or not at all."""
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [case.name for case in CASES]
    parser.add_argument(
        "--case",
        nargs="+",
        choices=names,
        default=QUICK,
        metavar="CASE",
        help=f"of {', '.join(names)}; default: {', '.join(QUICK)}",
    )
    parser.add_argument("--rounds", type=count, default=5, metavar="N", help="runs of each, in turns; default 5")
    parser.add_argument("--dynamo-python", metavar="PYTHON", help="the Python that has ai-dynamo")
    parser.add_argument("--libcachesim-python", metavar="PYTHON", help="the Python that has libcachesim")
    parser.add_argument("--observe", action="store_true", help="learn Dynamo's steps and times anew, time nothing")
    parser.add_argument("--profile", action="store_true", help="tell where our time goes, by function; time nothing")
    parser.add_argument(
        "--traces", type=Path, default=ROOT.parent / "shared" / "traces", help="folder of public traces"
    )
    return parser.parse_args()


def found_peer(name: str, python: str | None, module: str) -> str | None:
    """The Python program if it has the peer's module; else None, and a line on standard error."""
    if python is None:
        print(f"{name}: left out, no --{name}-python was given", file=sys.stderr)
        return None
    try:
        subprocess.run([python, "-c", f"import {module}"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"{name}: left out, {python} has no {module}", file=sys.stderr)
        return None
    return python


def timed(cases: list[ReplayCase | StreamCase], tools: Tools, num_rounds: int) -> int:
    """Runs, tells and keeps; the exit status is 1 if a case failed, or its contenders did unequal work."""
    found, complaints = {}, []
    for case in cases:
        try:
            results = measured(case, tools, num_rounds)
        except CannotMeasure as error:
            complaints.append(f"{case.name}: {error}")
            continue
        if not results:
            print(f"{case.name}: left out, its trace is not in {tools.public} (--traces)", file=sys.stderr)
            continue
        found[case.name] = results
        complaints += [f"{case.name}: {complaint}" for complaint in case.complaints(results)]
        print(f"{case.name}: {phases(results[OURS])}", file=sys.stderr)
    if found:
        keep(found, num_rounds)
        Console(width=140).print(table(found))
    for complaint in complaints:
        print(f"NOT EQUAL WORK OR FAILED: {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def main() -> int:
    options = parsed()
    cases = [case for case in CASES if case.name in options.case]
    with tempfile.TemporaryDirectory() as scratch:
        tools = Tools(
            sys.executable,
            found_peer("dynamo", options.dynamo_python, "dynamo._core"),
            found_peer("libcachesim", options.libcachesim_python, "libcachesim"),
            Path(scratch),
            options.traces,
        )
        if options.observe:
            for case in cases:
                case.look(tools)
            return 0
        return profiled(cases, tools) if options.profile else timed(cases, tools, options.rounds)


def profiled(cases: list[ReplayCase | StreamCase], tools: Tools) -> int:
    for case in cases:
        try:
            print(f"{case.name}: {case.profile(tools)}")
        except CannotMeasure as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
