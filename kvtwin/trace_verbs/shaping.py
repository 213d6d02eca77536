"""Options that the trace verbs share: how a trace is read, and what it goes through before it is written."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError, Namespace
from dataclasses import replace
from math import inf
from pathlib import Path

from kvtwin.arguments import Arguments, count, seed
from kvtwin.formatting import dropped_text
from kvtwin.tokenizing import read_with_tokenizer
from traces.capping import MOST, clip, drop_long
from traces.hashing import with_hash_ids
from traces.merging import merge
from traces.schema import Trace
from traces.selection import Criteria, Range, sample, select, window
from traces.transforms import length_scale, rate_scale, shuffle_tenants

ORDER = "Applied in the order listed: merge, select, window, sample, cap, scales, tenants, blocks."


def add_reading(parser: Arguments) -> None:
    group = parser.add_argument_group("reading")
    group.add_argument("--format", default="auto", metavar="NAME", help="of the file; default: recognised from content")
    group.add_argument(
        "--on-error", default="fail", metavar="fail|skip", help="skip leaves bad rows out and counts them by reason"
    )
    group.add_argument(
        "--hash-block-tokens",
        type=count,
        metavar="N",
        help="what a block hash stands for, where the format does not say",
    )
    group.add_argument(
        "--tokenizer", metavar="FILE|bytes/4", help="for traces of text: a tokenizer.json, or an estimate"
    )


def add_sampling(parser: Arguments) -> None:
    group = parser.add_argument_group("sampling, whole conversations kept together")
    group.add_argument("--fraction", metavar="F", help="share of the requests: 0.1, 1/3")
    group.add_argument("--num-requests", type=count, metavar="N", help="at least so many requests")
    group.add_argument("--seed", type=seed, default=0, metavar="N", help="of sampling and shuffling; default 0")


def add_shaping(parser: Arguments) -> None:
    group = parser.add_argument_group("transforms", ORDER)
    group.add_argument("--merge", action="append", default=[], metavar="FILE", help="merge another trace; repeatable")
    group.add_argument(
        "--prompt-tokens", type=_range, default=Range(), metavar="A:B", help="keep prompts of A to B tokens"
    )
    group.add_argument(
        "--output-tokens", type=_range, default=Range(), metavar="A:B", help="keep outputs of A to B tokens"
    )
    for name in ("tenant", "session", "priority"):
        group.add_argument(f"--{name}", type=_numbers, metavar="N,...", help=f"keep the requests of these, by {name}")
    group.add_argument("--category", type=_names, metavar="NAME,...", help="keep the requests of these, by category")
    group.add_argument(
        "--window", type=_times, metavar="A:B", help="keep arrivals from second A to before B; time restarts at A"
    )
    group.add_argument("--max-prompt-tokens", type=count, default=MOST, metavar="N", help="cap prompts")
    group.add_argument("--max-output-tokens", type=count, default=MOST, metavar="N", help="cap outputs")
    group.add_argument(
        "--long", choices=("clip", "drop"), default="clip", help="what becomes of longer ones; default clip"
    )
    group.add_argument("--rate-scale", metavar="X", help="requests X times as fast: 2, 0.5, 1/3")
    group.add_argument("--length-scale", metavar="X", help="lengths, and hash blocks with them, times X: 1/32")
    group.add_argument("--shuffle-tenants", action="store_true", help="deal tenants out anew among conversations")
    group.add_argument(
        "--block-size", type=count, metavar="N", help="tell prompts given as text by hashes of N-token blocks"
    )


def read_as_told(path: str | Path, options: Namespace) -> Trace:
    """The trace as it lies in its file, by the options of `add_reading`."""
    how = (options.format, options.on_error, options.hash_block_tokens, options.tokenizer)
    return read_with_tokenizer(path, *how)


def read(path: str, options: Namespace) -> Trace:
    """The trace as it lies in its file; says on standard error what of it was left out."""
    trace = read_as_told(path, options)
    if trace.num_dropped:
        note(dropped_text(trace.num_dropped, path))
    return trace


def read_shaped(path: str, options: Namespace) -> Trace:
    """The trace after all transforms that were asked for; says on standard error how many requests are left."""
    traces = [read(each, options) for each in (path, *options.merge)]
    whole = merge(traces) if len(traces) > 1 else traces[0]
    trace = _scaled(_fewer(whole, options), options)
    if options.block_size is not None:
        if trace.output_segments is not None:
            note("block hashes cannot tell recorded answers: what later prompts share with them alone is lost")
        trace = with_hash_ids(trace, options.block_size)
    if trace is whole:
        return trace
    if trace.num_requests < whole.num_requests:
        note(f"{trace.num_requests:,} of {whole.num_requests:,} requests kept")
    return replace(trace, recipe=None)  # which made the whole


def note(text: str) -> None:
    """One line on standard error."""
    print(f"note: {text}", file=sys.stderr)


def _fewer(trace: Trace, options: Namespace) -> Trace:
    criteria = Criteria(
        options.prompt_tokens,
        options.output_tokens,
        options.tenant,
        options.session,
        options.priority,
        options.category,
    )
    if criteria != Criteria():
        trace = select(trace, criteria)
    if options.window is not None:
        trace = window(trace, *options.window)
    if options.num_requests is not None or options.fraction is not None:
        trace = sample(trace, num_requests=options.num_requests, fraction=options.fraction, seed=options.seed)
    return trace


def _scaled(trace: Trace, options: Namespace) -> Trace:
    if (options.max_prompt_tokens, options.max_output_tokens) != (MOST, MOST):
        cap = {"clip": clip, "drop": drop_long}[options.long]
        trace = cap(trace, options.max_prompt_tokens, options.max_output_tokens)
    if options.rate_scale is not None:
        trace = rate_scale(trace, options.rate_scale)
    if options.length_scale is not None:
        trace = length_scale(trace, options.length_scale)
    return shuffle_tenants(trace, options.seed) if options.shuffle_tenants else trace


def _range(text: str) -> Range:
    """`A:B`, either end may be missing."""
    least, colon, most = text.partition(":")
    if not colon or not all(end.isdecimal() or not end for end in (least, most)):
        raise ArgumentTypeError(f"{text!r} is no range; expected A:B, A: or :B, whole numbers")
    kept = Range(int(least or 1), int(most) if most else inf)
    if kept.most < kept.least:
        raise ArgumentTypeError(f"{text!r} is empty; expected an end that is not below its start")
    return kept


def _times(text: str) -> tuple[str, str | None]:
    start, colon, end = text.partition(":")
    if not colon:
        raise ArgumentTypeError(f"{text!r} is no window; expected A:B, A: or :B, in seconds")
    return start or "0", end or None


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(number) for number in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"{text!r}; expected whole numbers with commas between them") from None


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(","))
