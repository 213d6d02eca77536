"""Compiles every kernel for every target, without a GPU, and writes docs/kernels.md. `scripts/kernel-report`"""

from __future__ import annotations

import inspect
import sys
from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import triton
import yaml

from kernels.aot import TARGETS, Case, Resources, Target, problems
from kernels.aot_cases import cases
from kernels.aot_check import all_variants, checked

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "kernels.md"
GPU_OF = {"sm_80": "a100_80gb", "sm_90": "h100_80gb", "sm_100": "b200_180gb", "gfx942": "mi300x_192gb"}

Found = Mapping[tuple[str, str], list[Resources]]  # by case and target; divisible first


def main() -> int:
    ArgumentParser(description=__doc__).parse_args()
    found: defaultdict[tuple[str, str], list[Resources]] = defaultdict(list)
    wrong = []
    for variant, resources in checked(all_variants()):
        name, target = variant.case.name, variant.target
        found[name, target.name].append(resources)
        wrong += [f"{name}, {target.name}: {problem}" for problem in problems(resources, target)]
        print(f"{name}, {target.name}: {resources}", file=sys.stderr)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    partial = PAGE.with_suffix(".partial")
    partial.write_text(page(cases(), found))
    partial.rename(PAGE)
    print(f"wrote {PAGE}")
    return 0


def page(all_cases: Sequence[Case], found: Found) -> str:
    num_compiled = sum(map(len, found.values()))
    work = _table(
        ["kernel", "file", "one call", "MB", "GFLOP", "FLOP/byte", *map(_floor_head, TARGETS)],
        map(_work_row, all_cases),
    )
    needs = _table(
        ["kernel", *(target.name for target in TARGETS), "spilled"], (_needs_row(case, found) for case in all_cases)
    )
    return f"""# Kernels

<!-- Written by scripts/kernel-report from kernels/aot_cases.py: change those, not this page. -->

Every Triton kernel of the engine, compiled ahead of time for four architectures, without a GPU, by Triton
{triton.__version__}. **None has been measured on a GPU yet.** Formulas, shapes, bytes and FLOPs are in the docstring of
the function that launches each; the same functions in plain torch, which they must equal, are in
`kernels/reference.py` and the other `*reference.py` files.

## What one call does

Bytes and FLOPs of the call named, counted by hand. The floor is arithmetic, not a measurement: the longer of bytes at
the data sheet's memory rate and FLOPs at its dense bf16 rate ([conf/hardware](../conf/hardware)).

{work}

## What one program needs

Registers a thread where pointers and integers are known to be multiples of 16 · where they are not (one number: the
kernel is launched with other tiles then, the case "unaligned"), and bytes of shared memory (LDS).
Spilled: the most bytes of stack a thread on any target; all {num_compiled} compilations must have 0.
Shared memory may be 163 KiB on sm_80, 227 KiB on sm_90 and sm_100, 64 KiB on gfx942.

{needs}
"""


def _table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _hardware(target: Target) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "conf" / "hardware" / f"{GPU_OF[target.name]}.yaml").read_text())


def _floor_head(target: Target) -> str:
    return f"floor {GPU_OF[target.name].split('_')[0].upper()}, µs"


def _work_row(case: Case) -> list[str]:
    file = Path(inspect.getfile(case.kernel.fn)).name
    work = case.work
    return [
        case.name,
        f"[{file}](../kernels/{file})",
        work.description,
        f"{work.num_bytes / 1e6:,.1f}",
        f"{work.flops / 1e9:,.2f}",
        f"{work.flops / work.num_bytes:.1f}",
        *(f"{_floor_s(work.num_bytes, work.flops, _hardware(target)) * 1e6:,.1f}" for target in TARGETS),
    ]


def _floor_s(num_bytes: int, flops: int, hardware: Mapping[str, Any]) -> float:
    return max(num_bytes / hardware["hbm_bytes_per_s"], flops / hardware["bf16_flops"])


def _needs_row(case: Case, found: Found) -> list[str]:
    cells = []
    for target in TARGETS:
        variants = found[case.name, target.name]
        registers = " · ".join(str(variant.registers) for variant in variants)
        cells.append(f"{registers}; {max(variant.shared_bytes for variant in variants):,} B")
    spilled = max(variant.stack_bytes for target in TARGETS for variant in found[case.name, target.name])
    return [case.name, *cells, str(spilled)]


if __name__ == "__main__":
    sys.exit(main())
