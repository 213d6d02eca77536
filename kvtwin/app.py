"""The `kvtwin` command: finds the verb, loads only what it needs, and turns bad input into one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from importlib import import_module

from core.errors import InputError
from kvtwin.rare_collection import lasting

VERBS = {
    "sim": "replay a trace in the simulator; -m sweeps",
    "engine": "replay a trace on the real engine",
    "validate": "both, decisions and times compared; report.html",
    "calibrate": "fit the linear cost model to this machine",
    "size": "what fits: KV bytes, blocks, sequences, floors",
    "mrc": "hits against capacity, for any set of eviction policies",
    "demo": "what the KV cache does, measured: one chart each",
    "policy": "list, new, check: policies there are, and your own",
    "parity": "replay recorded decision logs of other engines",
    "trace": "info, convert, export, sample, synth, fit",
    "model": "list shapes, fetch real weights, or convert to fewer KV heads",
    "collect": "the rows of finished runs; means over seeds, rankings of validations",
    "compare": "run A against run B: differences, intervals, what is resolved",
    "report": "report.html of a finished run",
    "compile": "the simulator as machine code: the same results in half the time",
    "doctor": "check this installation",
}

WITH_TORCH = ("engine", "validate", "calibrate", "demo", "model", "doctor")  # whose threads are left as they are

EXAMPLES = """examples:
  kvtwin sim                                            bundled trace, one table, no torch
  kvtwin sim -m eviction=lru,fifo pool.num_blocks=1024,2048
  kvtwin sim seeds=10 trace=synth eviction=lru,fifo     means with intervals, paired differences
  kvtwin sim trace=file trace.path=FILE pool.num_blocks=unbounded
  kvtwin sim --help                                     every group and key, with its default
  kvtwin validate +experiment=demo
  kvtwin size model=llama3_8b hardware=h100_80gb"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb; returns (and, as a console script, exits with) its status: 0, 1 (failed), 2 (bad input), 130."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(args)
        sys.stdout.flush()  # here, where a reader that has gone can still be dealt with
    except KeyboardInterrupt:
        print("kvtwin: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader of our output has gone: nothing to say to anyone
        return 1
    except Exception as error:
        from kvtwin.failures import tell_failure

        return tell_failure(error)
    except SystemExit as ended:  # how argparse ends once it has printed its help
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return status


def _run(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if args[0] == "--version":
        from importlib.metadata import version

        print(f"kvtwin {version('kvtwin')}")
        return 0
    if args[0] not in WITH_TORCH:
        # Threads of numpy's BLAS, of which a simulation has no use, spin from its import on: a tenth of a second.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return _verb(args[0])(args[1:])


def _usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {text}" for name, text in VERBS.items())
    return f"usage: kvtwin VERB [key=value ...]\n\n{verbs}\n\n{EXAMPLES}"


def _verb(name: str) -> Callable[[Sequence[str]], int]:
    if name not in VERBS:
        near = get_close_matches(name, VERBS, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"expected one of {', '.join(VERBS)}"
        raise InputError(f"no verb {name!r}: {hint}")
    module = f"kvtwin.verbs.{name}"
    with nullcontext() if module in sys.modules else lasting():
        run: Callable[[Sequence[str]], int] = import_module(module).run
    return run


if __name__ == "__main__":
    sys.exit(main())
