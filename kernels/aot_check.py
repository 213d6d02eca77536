"""Compiles the kernels ahead of time and checks them: `python -m kernels.aot_check [--pairwise] [--max-registers N]`

One JSON line a compilation; exit code 1 if any has a problem.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernels.aot import TARGETS, Case, Resources, Target, compile_case, fresh_cache, problems
from kernels.aot_cases import cases


class Variant(NamedTuple):
    """A case for a target, its arguments known to be multiples of 16 or not."""

    case: Case
    target: Target
    divisible: bool


def all_variants() -> list[Variant]:
    return [
        Variant(case, target, divisible) for case in cases() for target in TARGETS for divisible in case.divisibilities
    ]


def pairwise_variants() -> list[Variant]:
    """Half of all, every case on every target, with both divisibilities in each row and column; or less, see Case."""
    return [
        Variant(case, target, case.divisibilities[(row + column) % len(case.divisibilities)])
        for row, case in enumerate(cases())
        for column, target in enumerate(TARGETS)
        if (row + column) % len(TARGETS) < case.num_quick_targets
    ]


def checked(variants: Sequence[Variant], max_registers: int | None = None) -> Iterator[tuple[Variant, Resources]]:
    with fresh_cache():
        for variant in variants:
            yield variant, compile_case(*variant, max_registers)


def main(args: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot_check", description=__doc__.splitlines()[0])
    parser.add_argument("--pairwise", action="store_true", help="every pair of choices that is quick to compile")
    parser.add_argument("--case", help="this case only")
    parser.add_argument("--target", choices=[target.name for target in TARGETS], help="this target only")
    parser.add_argument("--max-registers", type=int, metavar="N", help="leave a thread N: a check of this check")
    options = parser.parse_args(args)
    variants = [
        variant
        for variant in (pairwise_variants() if options.pairwise else all_variants())
        if options.case in (None, variant.case.name) and options.target in (None, variant.target.name)
    ]
    if not variants:
        parser.error(f"no case of that name; there are: {'; '.join(case.name for case in cases())}")
    any_problem = False
    for variant, resources in checked(variants, options.max_registers):
        found = problems(resources, variant.target)
        any_problem |= bool(found)
        told = {"case": variant.case.name, "target": variant.target.name, "divisible": variant.divisible}
        print(json.dumps(told | resources._asdict() | {"problems": found}), flush=True)
    return int(any_problem)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
