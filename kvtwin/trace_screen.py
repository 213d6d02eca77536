"""One screen of a trace: what it is, when requests come, how long they are, how much they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvtwin.formatting import NOTHING, count_text, metric_text, ratio_text, seconds_text

_COLUMNS = ("mean", "p50", "p90", "p99", "min", "max")
_BAR_CHARACTERS = 10
UNDEFINED = "undefined: this trace carries no prefix information"


def info_screen(info: Mapping[str, Any]) -> Group:
    """Everything that `describe` found, but for the LRU curve."""
    parts: list[RenderableType] = [
        Text(f"{info['name']}: {info['format']}, {info['num_requests']:,} requests", style="bold"),
        _pairs(list(_facts(info))),
        _lengths(info),
    ]
    if info["sharing"] is None:
        parts.append(Text(f"Prefix hits  {UNDEFINED}"))
    else:
        parts += [_pairs(list(_sharing_facts(info["sharing"]))), _reuse(info["sharing"])]
        parts += [Text(line, style="dim") for line in remarks(info["sharing"])]
    parts += [Text(f"note: {oddity}", style="yellow") for oddity in info["oddities"]]
    parts.append(Text(f"licence: {info['licence'] or 'not told'}\nsha256:  {info['sha256']}", style="dim"))
    return Group(*parts)


def _facts(info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    arrivals, sessions = info["arrivals"], info["sessions"]
    yield "Span", seconds_text(arrivals["span_s"])
    yield "Mean rate", metric_text("requests_per_s", arrivals["mean_rate_rps"])
    yield "Gap, mean", seconds_text(arrivals["gap_mean_s"])
    yield "Gap, longest", seconds_text(arrivals["gap_max_s"])
    yield "Gap CV", NOTHING if arrivals["gap_cv"] is None else f"{arrivals['gap_cv']:.2f}"
    yield "Rows left out", _counts(info["num_dropped"]) if info["num_dropped"] else "none"
    if sessions is not None:
        turns, think = sessions["turns"], sessions["think_time_s"]
        yield "Sessions", f"{sessions['num_sessions']:,}"
        yield "Turns, mean (max)", f"{turns['mean']:.1f} ({turns['max']:.0f})"
        if think is not None:
            yield "Think time p50", seconds_text(think["p50"])
            yield "Think time p99", seconds_text(think["p99"])
    for what in ("tenant", "priority", "category"):
        counts = info[f"num_requests_by_{what}"]
        if counts is not None:
            yield f"Requests by {what}", _counts(counts)


def _sharing_facts(sharing: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Prefix hit ceiling", ratio_text(sharing["engine_hit_token_ratio"])
    yield "Hit tokens at most", count_text(sharing["engine_hit_tokens"])
    yield "With partial blocks", ratio_text(sharing["hit_token_ratio"])
    yield "… of blocks", ratio_text(sharing["hit_block_ratio"])
    yield "Block references", count_text(sharing["num_block_references"])
    yield "Unique blocks", count_text(sharing["num_unique_blocks"])
    yield "Blocks a request", count_text(sharing["blocks_per_request"]["mean"])
    yield "Longest request", f"{sharing['blocks_per_request']['max']:,.0f} blocks"


def remarks(sharing: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the hit figures should know."""
    block = sharing["block_tokens"]
    yield (
        f"Ceiling: share of prompt tokens that an infinite cache hits, one request after the other, in full blocks of"
        f" {block} tokens, one token always left to compute."
    )
    if sharing["longest_shared_prefix_tokens"]:
        yield (
            f"Shared prefix below one block: prompts share up to {sharing['longest_shared_prefix_tokens']} tokens,"
            f" which blocks of {block} cannot tell; a smaller --block-size can."
        )
    if sharing["answers_are_told"]:
        yield "Answers are recorded: a simulation may also hit what prompts share with earlier answers."
    if not sharing["ids_are_chained"]:
        yield "Some hash ids follow different ids: not prefix hashes. Reuse distances are those of single blocks."


def _lengths(info: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("tokens")
    for column in (*_COLUMNS, "total"):
        table.add_column(column, justify="right")
    for name in ("prompt", "output"):
        found = info[f"{name}_tokens"]
        table.add_row(name, *(count_text(round(found[column], 1)) for column in _COLUMNS), f"{found['total']:,.0f}")
    return table


def _reuse(sharing: Mapping[str, Any]) -> Table:
    """Two histograms side by side, in powers of two."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("reuse distance", "references", "", "reuse time", "references", ""):
        table.add_column(heading, justify="right" if heading == "references" else "left", no_wrap=True)
    distances = _bars(sharing["reuse_distance_blocks"], lambda bound: f"≤ {bound:,} blocks")
    times = _bars(sharing["reuse_time_s"], lambda bound: f"≤ {bound:,} s" if bound else "at once")
    for row in range(max(len(distances), len(times))):
        table.add_row(*_row(distances, row), *_row(times, row))
    return table


def _row(rows: Sequence[tuple[str, str, str]], index: int) -> tuple[str, str, str]:
    return rows[index] if index < len(rows) else ("", "", "")


def _bars(buckets: Sequence[Mapping[str, int]], label: Any) -> list[tuple[str, str, str]]:
    most = max((bucket["num_references"] for bucket in buckets), default=1)
    return [
        (
            label(bucket["up_to"]),
            f"{bucket['num_references']:,}",
            "█" * max(1, round(_BAR_CHARACTERS * bucket["num_references"] / most)),
        )
        for bucket in buckets
    ]


def _pairs(cells: Sequence[tuple[str, str]]) -> Table:
    """Two figures a row."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 1))
    for _ in range(2):
        table.add_column()
        table.add_column(justify="right")
    for first in range(0, len(cells), 2):
        right = cells[first + 1] if first + 1 < len(cells) else ("", "")
        table.add_row(*cells[first], *right)
    return table


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items())
