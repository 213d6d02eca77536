"""`kvtwin mrc`: hits against capacity, for any set of eviction policies on any trace."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from core.errors import InputError
from kvtwin.arguments import Arguments, count, file_to_write, seed, settings_named_as_flags
from kvtwin.binding import instantiate_one
from kvtwin.block_flops import with_flops
from kvtwin.block_replay import Mode, Touch
from kvtwin.composition import compose_config
from kvtwin.failures import require
from kvtwin.mrc import MrcOptions, auto_capacities, measure
from kvtwin.mrc_screen import mrc_screen
from kvtwin.policy_words import policy_choices
from kvtwin.tables import print_tables
from kvtwin.trace_verbs.shaping import add_reading, read_as_told
from traces.block_references import BlockReferences, block_references
from traces.samples import SAMPLE_NAMES, sample_path
from traces.transforms import limit

AUTO = "auto"
DEFAULT_POLICIES = "lru,fifo,lfu,sieve"
EXAMPLES = """examples:
  kvtwin mrc
  kvtwin mrc --trace FILE --policies lru,sieve --capacities 1000,10000 --mode prefix --json
  kvtwin mrc --trace FILE --policies 'lru,s3fifo[small_ratio=0.2],my_module.MyPolicy' --html mrc.html"""


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # for a policy of the user's own
    if options.html is not None:
        require("plotly")
    mode, touch = Mode(options.mode), Touch(options.touch)
    if touch is Touch.HEAD and mode is not Mode.PREFIX:
        raise InputError(f"--touch head says how prefixes are touched; expected --mode prefix, not {mode.value}")
    choices = policy_choices(options.policies)
    references = _references(options)
    if options.model is not None:
        config = compose_config("sim", [f"model={options.model}"])
        references = with_flops(references, instantiate_one(config.model, "model"))
    capacities = auto_capacities(references) if options.capacities == AUTO else _numbers(options.capacities)
    found = measure(references, choices, capacities, MrcOptions(mode, touch, options.seed, options.jobs, options.bound))
    if options.html is not None:
        from kvtwin.report.mrc_page import write_mrc_page

        write_mrc_page(options.html, found)
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print_tables(mrc_screen(found))
    return 0


def _parser() -> Arguments:
    parser = Arguments(
        "mrc",
        "What each eviction policy hits at each capacity, prompts one after the other, answers left out.\n"
        "With the ceiling of an infinite cache, Belady's bound, and the knee of LRU's curve.",
        epilog=EXAMPLES,
    )
    names = ", ".join(SAMPLE_NAMES)
    parser.add_argument("--trace", default="agent_sessions", metavar="FILE", help=f"or a bundled one: {names}")
    parser.add_argument(
        "--policies",
        default=DEFAULT_POLICIES,
        metavar="A,B",
        help="names, name[key=value], module.Class; all: every one",
    )
    parser.add_argument("--capacities", default=AUTO, metavar="N,N", help="in blocks; default: ten, log-spaced")
    parser.add_argument(
        "--mode",
        choices=[mode.value for mode in Mode],
        default=Mode.PREFIX.value,
        help="plain: every block on its own; prefix: leading blocks hit, requests are pinned whole (default); "
        "leaf: the same, evicting only blocks without resident children",
    )
    parser.add_argument(
        "--touch",
        choices=[touch.value for touch in Touch],
        default=Touch.TAIL.value,
        help="in mode prefix: a request's blocks are touched tail first (default), or one by one, head first",
    )
    parser.add_argument("--limit", type=count, metavar="N", help="the first N requests only")
    parser.add_argument("--block-size", type=count, metavar="N", help="for prompts given as text: tokens a block")
    parser.add_argument("--model", metavar="NAME", help="also the prefill FLOP that the hits save, and their bound")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of policies that draw random numbers")
    parser.add_argument(
        "--jobs", type=count, default=os.cpu_count() or 1, metavar="N", help="processes; default: cores"
    )
    parser.add_argument("--no-bound", dest="bound", action="store_false", help="leave Belady's bound out")
    parser.add_argument("--json", action="store_true", help="every figure, with its unit in its key")
    parser.add_argument(
        "--html", type=file_to_write, metavar="OUT", help="a page with the curves, one file, no network"
    )
    add_reading(parser)
    return parser


def _references(options: Namespace) -> BlockReferences:
    is_sample = options.trace in SAMPLE_NAMES and not Path(options.trace).exists()
    with settings_named_as_flags():
        trace = read_as_told(sample_path(options.trace) if is_sample else options.trace, options)
        if options.limit is not None:
            trace = limit(trace, options.limit)
    return block_references(trace, options.block_size)


def _numbers(text: str) -> list[int]:
    try:
        numbers = sorted({int(number) for number in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1:
        raise InputError(f"--capacities {text}: expected numbers of blocks from 1 on with commas between them, or auto")
    return numbers
