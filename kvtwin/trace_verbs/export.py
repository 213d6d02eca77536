"""`kvtwin trace export FILE --for TOOL --out DIR`: the file that a load tool takes, and its command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvtwin.arguments import Arguments
from kvtwin.load_tools import TOOLS, export, require_exportable
from kvtwin.trace_verbs.shaping import add_reading, add_sampling, add_shaping, note, read_shaped
from kvtwin.trace_verbs.writing import spare, tell_losses


def run(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    folder = Path(options.out)
    require_exportable(options.tool, folder)
    for there in folder.glob("*"):
        if there.stem == options.tool:  # so are the files that `export` writes called
            spare([options.file, *options.merge], there)
    trace = read_shaped(options.file, options)
    exported = export(trace, options.tool, folder)
    tell_losses(trace, exported.format_name)
    for remark in exported.remarks:
        note(remark)
    print(exported.command)
    return 0


def _parser() -> Arguments:
    parser = Arguments(
        "trace export",
        "Writes what a load tool replays and prints the command, with the right time unit and block size.\n"
        "MODEL and http://HOST:PORT are yours to fill in.",
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--for", dest="tool", required=True, metavar="TOOL", help=", ".join(TOOLS))
    parser.add_argument("--out", required=True, metavar="DIR", help="where the file goes; made if need be")
    add_reading(parser)
    add_shaping(parser)
    add_sampling(parser)
    return parser
