"""`kvtwin trace sample IN OUT`: fewer requests, whole conversations kept together."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import InputError
from kvtwin.arguments import Arguments
from kvtwin.trace_verbs.shaping import add_reading, add_sampling, add_shaping, read_shaped
from kvtwin.trace_verbs.writing import chosen_format, require_writable, write_and_tell


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    if options.fraction is None and options.num_requests is None and options.window is None:
        raise InputError("trace sample: how many? expected --fraction, --num-requests or --window")
    format_name = chosen_format(options.out, options.to)
    require_writable(options.out, [options.file, *options.merge])
    trace = read_shaped(options.file, options)
    write_and_tell(trace, format_name, options.out)
    return 0


def _parser() -> Arguments:
    parser = Arguments(
        "trace sample",
        "Fewer requests of a trace. They keep their times (a fraction of the requests is a fraction of the rate).",
    )
    parser.add_argument("file", metavar="IN")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--to", metavar="FORMAT", help="default: by the ending of OUT (.jsonl: kvtwin)")
    add_reading(parser)
    add_sampling(parser)
    add_shaping(parser)
    return parser
