"""`kvtwin trace info FILE`: one screen, JSON, or a page with plots."""

from __future__ import annotations

import json
from collections.abc import Sequence

from kvtwin.arguments import Arguments, count, file_to_write
from kvtwin.failures import require
from kvtwin.tables import print_tables
from kvtwin.trace_info import describe
from kvtwin.trace_screen import info_screen
from kvtwin.trace_verbs.shaping import add_reading, read_as_told
from kvtwin.trace_verbs.writing import spare
from traces.reading import format_name


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    if options.html is not None:
        require("plotly")
        spare([options.file], options.html)
    name = format_name(options.file) if options.format == "auto" else options.format
    trace = read_as_told(options.file, options)
    info = describe(trace, name, options.block_size)
    if options.html is not None:
        from kvtwin.report.trace_page import write_trace_page

        write_trace_page(options.html, trace, info)
    if options.json:
        print(json.dumps(info, indent=1))
    else:
        print_tables(info_screen(info))
    return 0


def _parser() -> Arguments:
    parser = Arguments("trace info", "One screen of a trace: arrivals, lengths, sessions, how much prompts share.")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--json", action="store_true", help="every figure, with its unit in its key")
    parser.add_argument("--html", type=file_to_write, metavar="OUT", help="a page with plots, one file, no network")
    parser.add_argument(
        "--block-size", type=count, metavar="N", help="for prompts given as text: tokens a block, default 16"
    )
    add_reading(parser)
    return parser
