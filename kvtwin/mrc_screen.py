"""Miss-ratio curves on a terminal: a row a capacity, a column a policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvtwin.block_replay import NUM_LOOKS
from kvtwin.formatting import NOTHING, counted, ratio_text


def mrc_screen(found: Mapping[str, Any]) -> Group:
    """Hit ratios by block, the best of each row in bold, and what they are to be measured against."""
    limits = {row["capacity_blocks"]: row["hit_block_ratio"] for row in found["bound"]}
    parts: list[RenderableType] = [Text(headline(found), style="bold"), _table(hit_ratios(found), limits, "Belady")]
    if found["prefill_flops"] is not None:
        total = found["prefill_flops"]
        limits = {row["capacity_blocks"]: row["hit_flops"] / total for row in found["flop_bound"]}
        parts += [
            Text("Share of the prefill FLOP that hits save, and what no policy can save more than", style="bold"),
            _table(_by_policy(found, "hit_flops", total), limits, "bound"),
        ]
    return Group(*parts, *(Text(line, style="dim") for line in remarks(found)))


def _table(ratios: Mapping[str, Mapping[int, float]], limits: Mapping[int, float], limit_name: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("blocks", justify="right")
    for name in (*ratios, *([limit_name] if limits else [])):
        table.add_column(name.replace("[", r"\["), justify="right")
    for capacity in next(iter(ratios.values())):
        row = [ratios[name][capacity] for name in ratios]
        cells = [Text(ratio_text(ratio), style="bold" if ratio == max(row) else "") for ratio in row]
        limit = [Text(ratio_text(limits[capacity]), style="dim")] if limits else []
        table.add_row(f"{capacity:,}", *cells, *limit)
    return table


def hit_ratios(found: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Hit blocks over references, by policy and capacity."""
    return _by_policy(found, "hit_blocks", found["references"])


def _by_policy(found: Mapping[str, Any], figure: str, whole: float) -> dict[str, dict[int, float]]:
    ratios: dict[str, dict[int, float]] = {}
    for row in found["results"]:
        ratios.setdefault(row["policy"], {})[row["capacity_blocks"]] = row[figure] / whole
    return ratios


def headline(found: Mapping[str, Any]) -> str:
    """What was replayed, in one line."""
    touched = f", touched {found['touch']} first" if found["mode"] == "prefix" else ""
    return (
        f"{found['trace']}: hit ratio by block, mode {found['mode']}{touched}; {found['num_requests']:,} requests, "
        f"{found['references']:,} references to {found['unique_blocks']:,} blocks of {found['block_tokens']} tokens"
    )


def remarks(found: Mapping[str, Any]) -> list[str]:
    """The ceiling, the knee, orphans, and what a small capacity means."""
    lines = [f"An infinite cache hits {ratio_text(found['infinite']['hit_blocks'] / found['references'])}."]
    knee = found["lru_knee"]
    if knee is not None:
        lines.append(
            f"LRU's knee: {counted(knee['capacity_blocks'], 'block')}, "
            f"{ratio_text(knee['hit_blocks'] / found['references'])}; beyond it a block brings less than on average."
        )
    worst = max(found["results"], key=lambda row: row["unreachable_block_ratio"] or 0)
    if worst["unreachable_block_ratio"]:
        lines.append(
            f"Orphans: up to {ratio_text(worst['unreachable_block_ratio'])} of the blocks ({worst['policy']} at "
            f"{worst['capacity_blocks']:,}) cannot be hit, because a block before them is gone (mean of up to "
            f"{NUM_LOOKS} looks, evenly spread over the requests)."
        )
    if found["mode"] != "plain" and min(row["capacity_blocks"] for row in found["results"]) < (
        longest := found["longest_request_blocks"]
    ):
        lines.append(f"The longest request has {longest:,} blocks: of one that does not fit, the first blocks stay.")
    return lines or [NOTHING]
