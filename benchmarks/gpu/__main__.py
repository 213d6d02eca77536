"""Everything that must be seen on a GPU: one command, one JSON file, under eight minutes.

Stages: correctness of the kernels, their bandwidth, the speed of an 8B-shape engine, overlapping steps, engine against
simulator. The file is written anew after each stage, so what ran is kept. Exit code 1 if something is wrong; figures
that fall short of what was asked are listed, but they are figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

STAGES = ("correctness", "bandwidth", "engine_speed", "overlap", "end_to_end")
ROOT = Path(__file__).resolve().parent.parent.parent


def main(args: Sequence[str]) -> int:
    options = _options(args)
    if options.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    import torch

    from benchmarks.gpu.machine import describe, file_name
    from benchmarks.gpu.sizes import DRY, GPU
    from benchmarks.gpu.stage import Setting

    if not options.dry_run and not torch.cuda.is_available():
        print("no GPU that torch can use: nothing to check (--dry-run does it in small on the CPU)", file=sys.stderr)
        return 2
    device = torch.device("cpu" if options.dry_run else "cuda")
    setting = Setting(device, DRY if options.dry_run else GPU)
    folder = ROOT / "runs" if options.dry_run else ROOT / "benchmarks" / "results"
    target = options.out or folder / f"gpu_check_{file_name(device)}.json"
    result: dict[str, Any] = {
        "schema": "kvtwin.gpu_check/1",
        "dry_run": options.dry_run,
        "machine": describe(device),
        "stages": {},
    }
    start_s = time.perf_counter()
    for name in options.only or STAGES:
        result["stages"][name] = stage = _run_stage(name, setting)
        result["wall_s"] = time.perf_counter() - start_s
        _write(target, result)
        _tell(name, stage)
    print(f"wrote {target} after {result['wall_s']:.0f} s")
    return int(any(stage["status"] == "failed" for stage in result["stages"].values()))


def _options(args: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="the same in small on the CPU; its times mean nothing")
    parser.add_argument("--only", action="append", choices=STAGES, help="this stage only; may be repeated")
    parser.add_argument(
        "--out", type=Path, help="the result file (default: benchmarks/results/gpu_check_<device>.json)"
    )
    return parser.parse_args(args)


def _run_stage(name: str, setting: Any) -> dict[str, Any]:
    from benchmarks.gpu.stage import CannotRun

    start_s = time.perf_counter()
    try:
        found = import_module(f"benchmarks.gpu.{name}").run(setting)
    except CannotRun as reason:
        return {"status": "skipped", "reason": str(reason)}
    except Exception:  # the other stages are worth running
        return {"status": "failed", "failures": traceback.format_exc().splitlines()[-6:]}
    return {
        "status": "failed" if found.failures else "passed",
        "wall_s": time.perf_counter() - start_s,
        "failures": found.failures,
        "shortfalls": found.shortfalls,
        "rows": found.rows,
    }


def _write(target: Path, result: dict[str, Any]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1))
    partial.rename(target)


def _tell(name: str, stage: dict[str, Any]) -> None:
    print(f"{name}: {stage['status']}{'; ' + stage['reason'] if 'reason' in stage else ''}")
    for kind in ("failures", "shortfalls"):
        for line in stage.get(kind, [])[:20]:
            print(f"  {kind.removesuffix('s')}: {line}")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
