"""A page about one trace: when its requests come, how long they are, how much its prompts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtwin.formatting import NOTHING, count_text, metric_text, ratio_text, seconds_text
from kvtwin.report.figure import Chart
from kvtwin.report.page import Section, Tile, chart_grid, render_page, table, tiles
from kvtwin.report.report import write_page
from kvtwin.report.trace_charts import arrivals_chart, gap_chart, length_chart, lru_chart, reuse_chart
from kvtwin.report.verdict import Verdict
from kvtwin.trace_screen import UNDEFINED, remarks
from traces.schema import Trace

_COLUMNS = ("mean", "p50", "p90", "p99", "min", "max", "total")


def write_trace_page(path: Path, trace: Trace, info: Mapping[str, Any]) -> None:
    """Write one offline HTML file; `info` is what `describe` found of `trace`.

    Raises InputError where plotly is not installed or the file cannot be written.
    """
    sharing = info["sharing"]
    arrivals, lengths = [arrivals_chart(trace), *gap_chart(trace)], [length_chart(trace)]
    shared = [] if sharing is None else _sharing_charts(sharing)
    sections = [
        Section("Key figures", "", tiles(_tiles(info))),
        Section("Arrivals", "", chart_grid(arrivals)),
        Section("Lengths", "", f"{chart_grid(lengths)}{_length_table(info)}"),
    ]
    if sharing is not None:
        sections.append(Section("Sharing of prefixes", " ".join(remarks(sharing)), chart_grid(shared)))
    page = render_page(
        f"kvtwin: {info['name']}",
        Verdict(str(info["name"]), f"{info['num_requests']:,} requests, {info['format']}", "neutral"),
        [],
        _sentence(info),
        _warnings(info),
        sections,
        [*arrivals, *lengths, *shared],
        f"licence: {info['licence'] or 'not told'} · sha256 {info['sha256']}",
    )
    write_page(path, page)


def _sharing_charts(sharing: Mapping[str, Any]) -> list[Chart]:
    return [
        lru_chart(sharing),
        reuse_chart("reuse-distance", "Reuse distance", "blocks", sharing["reuse_distance_blocks"]),
        reuse_chart("reuse-time", "Reuse time", "s", sharing["reuse_time_s"]),
    ]


def _sentence(info: Mapping[str, Any]) -> str:
    arrivals, sharing = info["arrivals"], info["sharing"]
    hits = UNDEFINED if sharing is None else f"at most {ratio_text(sharing['engine_hit_token_ratio'])} of prompt tokens"
    return (
        f"{metric_text('requests_per_s', arrivals['mean_rate_rps'])} over {seconds_text(arrivals['span_s'])}; "
        f"prefix hits {hits}."
    )


def _warnings(info: Mapping[str, Any]) -> list[str]:
    dropped = info["num_dropped"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
    return [*([f"Rows left out: {reasons}."] if dropped else []), *map(_sentence_case, info["oddities"])]


def _sentence_case(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _tiles(info: Mapping[str, Any]) -> list[Tile]:
    arrivals, sessions, sharing = info["arrivals"], info["sessions"], info["sharing"]
    found = [
        Tile("Requests", f"{info['num_requests']:,}"),
        Tile("Span", seconds_text(arrivals["span_s"])),
        Tile("Mean rate", metric_text("requests_per_s", arrivals["mean_rate_rps"])),
        Tile("CV of the gaps", NOTHING if arrivals["gap_cv"] is None else f"{arrivals['gap_cv']:.2f}", "Poisson: 1"),
        Tile("Prompt, mean", f"{info['prompt_tokens']['mean']:,.0f}", "tokens"),
        Tile("Output, mean", f"{info['output_tokens']['mean']:,.0f}", "tokens"),
    ]
    if sessions is not None:
        found.append(Tile("Sessions", f"{sessions['num_sessions']:,}", f"{sessions['turns']['mean']:.1f} turns, mean"))
    if sharing is None:
        return [*found, Tile("Prefix hits", "undefined", "no prefix information")]
    return [
        *found,
        Tile("Prefix hits at most", ratio_text(sharing["engine_hit_token_ratio"]), "of prompt tokens"),
        Tile("Unique blocks", count_text(sharing["num_unique_blocks"]), f"of {sharing['block_tokens']} tokens"),
    ]


def _length_table(info: Mapping[str, Any]) -> str:
    rows: Sequence[Sequence[str]] = [
        [name, *(count_text(round(info[f"{name}_tokens"][column], 1)) for column in _COLUMNS)]
        for name in ("prompt", "output")
    ]
    return f'<div class="panel">{table(("tokens", *_COLUMNS), rows)}</div>'
