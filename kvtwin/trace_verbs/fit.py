"""`kvtwin trace fit FILE --out RECIPE`: a generator that reproduces a trace's statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.errors import InputError
from kvtwin.arguments import Arguments, seed
from kvtwin.trace_verbs.shaping import add_reading, read
from kvtwin.trace_verbs.writing import require_writable
from traces.fit import fit, residual_table
from traces.recipe import write_recipe


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    require_writable(options.out, [options.file])
    trace = read(options.file, options)
    recipe, residuals = fit(trace, options.seed, Path(options.out).stem)
    lines = residual_table(residuals)
    not_learnt = recipe["fit"]["not_learnt"]
    if not_learnt:
        lines.append(f"not learnt: {', '.join(not_learnt)}")
    origin = f"Learnt by `kvtwin trace fit {Path(options.file).name}`."
    try:
        write_recipe(Path(options.out), recipe, [origin, "", *lines])
    except OSError as error:
        raise InputError(f"{options.out}: cannot be written ({error.strerror}); expected a file to write") from error
    print("\n".join(lines))
    print(options.out)
    return 0


def _parser() -> Arguments:
    parser = Arguments(
        "trace fit",
        "Learns a recipe from a trace: arrivals, lengths, shared prefixes. Prints what a trace made from it is like\n"
        "beside the one it was learnt from. Make traces with `kvtwin trace synth RECIPE --out FILE`.",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--out", required=True, metavar="RECIPE", help="a YAML file to write")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the trace that is compared; default 0")
    add_reading(parser)
    return parser
