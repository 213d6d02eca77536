"""`kvtwin trace convert IN OUT`: from any known format to another, transforms on the way."""

from __future__ import annotations

from collections.abc import Sequence

from kvtwin.arguments import Arguments
from kvtwin.trace_verbs.shaping import add_reading, add_sampling, add_shaping, read_shaped
from kvtwin.trace_verbs.writing import chosen_format, require_writable, write_and_tell
from traces.writing import TARGETS


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    format_name = chosen_format(options.out, options.to)
    require_writable(options.out, [options.file, *options.merge])
    trace = read_shaped(options.file, options)
    write_and_tell(trace, format_name, options.out)
    return 0


def _parser() -> Arguments:
    formats = "\n".join(f"  {target.name:<20}{target.description}" for target in TARGETS)
    parser = Arguments(
        "trace convert",
        "From any known format to another; what the format cannot carry is named. OUT may end in .gz.",
        epilog=f"formats to write:\n{formats}",
    )
    parser.add_argument("file", metavar="IN")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--to", metavar="FORMAT", help="default: by the ending of OUT (.jsonl: kvtwin)")
    add_reading(parser)
    add_shaping(parser)
    add_sampling(parser)
    return parser
