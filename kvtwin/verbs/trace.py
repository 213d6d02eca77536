"""`kvtwin trace VERB`: look at traces, convert, sample, make and fit them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from core.errors import InputError
from kvtwin.arguments import settings_named_as_flags
from kvtwin.naming import near_or_all

TRACE_VERBS = {
    "info": "one screen of a trace: lengths, arrivals, sharing; --json, --html",
    "convert": "from any known format to another, transforms on the way",
    "export": "the file that a load tool takes, and the command that replays it",
    "sample": "fewer requests, whole sessions kept together",
    "synth": "make a trace by a seeded generator",
    "fit": "a generator that reproduces a trace's statistics",
}

EXAMPLES = """examples:
  kvtwin trace info FILE
  kvtwin trace convert FILE out.jsonl --rate-scale 2
  kvtwin trace export FILE --for aiperf --out DIR
  kvtwin trace VERB --help"""


def run(args: Sequence[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if args[0] not in TRACE_VERBS:
        raise InputError(f"no trace verb {args[0]!r}{near_or_all(args[0], TRACE_VERBS)}")
    run_verb: Callable[[Sequence[str]], int] = import_module(f"kvtwin.trace_verbs.{args[0]}").run
    with settings_named_as_flags():
        return run_verb(args[1:])


def _usage() -> str:
    width = max(map(len, TRACE_VERBS))
    lines = "\n".join(f"  {name:<{width}}  {text}" for name, text in TRACE_VERBS.items())
    return f"usage: kvtwin trace VERB FILE ... [--option value ...]\n\n{lines}\n\n{EXAMPLES}"
