"""`kvtwin demo NAME`: the demonstrations of the KV cache, one command and one chart each."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import import_module

from core.errors import InputError
from kvtwin.arguments import Arguments, file_to_write
from kvtwin.failures import require
from kvtwin.naming import near_or_all

DEMONSTRATIONS = {
    "cached": "one attention layer, with its cache and without: time a token against position",
    "cached_model": "the same of a real model: speed-up against length (needs torch)",
    "growth": "torch.cat, preallocated and paged caches: time and bytes of an append (needs torch)",
    "operations": "allocate, write, read, free: µs and bytes of each (needs torch)",
    "reads": "bytes that a decode step reads: KV against weights, and where they cross",
    "intensity": "FLOP per byte of prefill and decode, beside what a device can do",
    "saturation": "load driven until the pool is full: throughput, latency, KV use, preemptions",
}

EXAMPLES = """examples:
  kvtwin demo cached --steps 1000
  kvtwin demo reads --model llama3_8b --html reads.html
  kvtwin demo NAME --help"""


def run(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0
    name = args[0]
    if name not in DEMONSTRATIONS:
        raise InputError(f"no demonstration {name!r}{near_or_all(name, DEMONSTRATIONS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy loads: threads would be measured, not the cache
    demonstration = import_module(f"kvtwin.demonstrations.{name}")
    parser = Arguments(f"demo {name}", DEMONSTRATIONS[name])
    demonstration.add_options(parser)
    parser.add_argument("--json", action="store_true", help="every figure, with its unit in its key")
    parser.add_argument("--html", type=file_to_write, metavar="OUT", help="a page with the chart, one file, no network")
    options = parser.parse_args(args[1:])
    if options.html is not None:
        require("plotly")
    shown = demonstration.measure(options)
    if options.html is not None:
        from kvtwin.report.demonstration_page import write_demonstration_page

        write_demonstration_page(options.html, shown)
    if options.json:
        print(json.dumps(shown.figures, indent=1))
        return 0
    from kvtwin.demonstrations.screen import demonstration_screen
    from kvtwin.tables import print_tables

    print_tables(demonstration_screen(shown))
    return 0


def _usage() -> str:
    width = max(map(len, DEMONSTRATIONS))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in DEMONSTRATIONS.items())
    return f"usage: kvtwin demo NAME [--option value ...] [--json] [--html OUT]\n\n{lines}\n\n{EXAMPLES}"
