"""`kvtwin compile`: the simulator's inner modules as machine code, from then on used by every command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from core.errors import InputError
from kvtwin.compiled import MODULES, is_wanted
from kvtwin.compiling import compile_modules

_HELP = """usage: kvtwin compile

Compiles the simulator's inner modules with mypyc and this machine's C compiler, and keeps the result if it decides as
the sources do. It takes some minutes, once for each version of the sources; simulations then take about half the time.
KVTWIN_COMPILED=0 reads the sources all the same."""


def run(args: Sequence[str]) -> int:
    if list(args) in (["-h"], ["--help"]):
        print(_HELP)
        return 0
    if args:
        raise InputError(f"compile takes no arguments, got {' '.join(args)}")
    print(f"compiling {len(MODULES)} modules: this takes some minutes", file=sys.stderr, flush=True)
    place, is_new = compile_modules()
    print(f"{place}: {'made' if is_new else 'nothing to do, they are there'}")
    if not is_wanted():
        print("not used while KVTWIN_COMPILED=0", file=sys.stderr)
    return 0
