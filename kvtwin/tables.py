"""Terminal tables: one run, a sweep, a comparison. Coloured and fitted on a terminal, plain long rows in a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvtwin import fleet_figures
from kvtwin.agreement import is_within_spread
from kvtwin.formatting import (
    COMPARED,
    NOTHING,
    SLO_MET,
    error_text,
    metric_label,
    metric_text,
    spread_text,
    time_unit,
)

_OF_FLEETS = {"routing", "num_replicas"}  # labels that one replica lacks, which more are compared with all the same
UNLIMITED = 1_000  # characters: wider than any table
KINDS = {"sim": "simulated", "engine": "measured"}  # a run's figures, by its kind
_LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "queue_s")
_COLUMNS = ("mean", "p50", "p90", "p95", "p99", "max")
_KEY_FIGURES = (
    "output_tokens_per_s",
    "requests_per_s",
    "goodput_rps",
    SLO_MET,
    "prefix_hit_ratio",
    "kv_utilization_ratio.time_mean",
    "kv_utilization_ratio.peak",
    "kv_cached_ratio.time_mean",
    "waste_ratio.reserved",
    "waste_ratio.internal",
    "waste_ratio.external",
    "waste_total_ratio.time_mean",
    "waste_total_ratio.peak",
    "num_moved_blocks",
    "sharing_saved_ratio",
    "evictable_ratio.time_mean",
    "evictable_ratio.min",
    "num_evictions",
    "num_costly_evictions",
    "recomputed_evicted_tokens",
    "orphan_blocks.time_mean",
    "orphan_blocks.peak",
    "num_preemptions",
    "recomputed_tokens",
    "swapped_bytes",
    "makespan_s",
)
# Short headings: a row of a sweep should fit 80 columns.
_SWEEP_FIGURES = {
    "output_tokens_per_s": "tok/s",
    "ttft_s.p50": "TTFT\np50",
    "ttft_s.p99": "TTFT\np99",
    "tpot_s.p50": "TPOT\np50",
    SLO_MET: "SLO\nmet",
    "prefix_hit_ratio": "prefix\nhits",
    "evictable_ratio.time_mean": "evict-\nable",
    "kv_utilization_ratio.time_mean": "KV\nuse",
    "num_evictions": "evic-\ntions",
    "num_preemptions": "pre-\nempts",
}


def print_tables(*tables: RenderableType, file: TextIO | None = None) -> None:
    """Write tables to `file` (default: standard output), without colour and unwrapped unless it is a terminal."""
    console = _console(file)
    for table in tables:
        console.print(table)


def print_sweep(summaries: Sequence[Mapping[str, Any]], file: TextIO | None = None) -> None:
    """Write a sweep's rows; a terminal that is too narrow for them all goes without the names of the run folders."""
    console = _console(file)
    table = sweep_table(summaries)
    if console.measure(table, options=console.options.update(max_width=UNLIMITED)).maximum > console.width:
        table = sweep_table([{**row, "labels": _without(row["labels"], "run")} for row in summaries])
    console.print(table)


def print_sweeps(summaries: Sequence[Mapping[str, Any]], file: TextIO | None = None) -> None:
    """Write the rows of several sweeps, a table for those whose labels have the same names: one table of all would be
    wide with columns that most rows leave empty. Each is headed by what its rows have in common, but not with all rows.
    """
    sweeps: dict[frozenset[str], list[Mapping[str, Any]]] = {}
    for summary in summaries:
        sweeps.setdefault(frozenset(summary["labels"]) - _OF_FLEETS, []).append(summary)
    varying = varying_labels([summary["labels"] for summary in summaries])
    for number, rows in enumerate(sweeps.values()):
        if len(sweeps) > 1:
            in_common = _in_common([row["labels"] for row in rows], varying)
            print_tables(Text("\n" * (number > 0) + in_common), file=file)
        print_sweep(rows, file)


def _in_common(labels: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Of these labels: those that all rows have the same."""
    differing = varying_labels(labels)
    return " ".join(f"{name}={labels[0][name]}" for name in names if name in labels[0] and name not in differing)


def _console(file: TextIO | None) -> Console:
    console = Console(file=file, highlight=False)
    if console.is_terminal:
        return console
    # A pipe has no width: rows must not wrap where grep or a diff will read them.
    return Console(file=file, highlight=False, width=UNLIMITED, color_system=None)


def _without(labels: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in labels.items() if key != name}


def run_table(summary: Mapping[str, Any]) -> Group:
    """One run's figures: its latencies by percentile, then throughput, cache and pool."""
    metrics = summary["metrics"]
    parts: list[RenderableType] = [_latency_table(metrics), _figure_table(metrics)]
    if "fleet" in summary:
        parts.append(fleet_table(summary["fleet"]))
    if summary.get("interrupted"):
        parts.append(Text("interrupted: figures cover the part that ran", style="yellow"))
    return Group(*parts)


def fleet_table(fleet: Mapping[str, Any]) -> Table:
    """How the work was spread over the replicas. A row a figure."""
    table = new_table()
    table.add_column(fleet_figures.heading(fleet))
    for column in fleet_figures.COLUMNS:
        table.add_column(column, justify="right")
    for row in fleet_figures.spread_rows(fleet):
        table.add_row(*row)
    return table


def sweep_table(summaries: Sequence[Mapping[str, Any]]) -> Table:
    """A row per job: first the labels in which the jobs differ, then the figures that a choice is made by."""
    labels = [summary.get("labels", {}) for summary in summaries]
    varying = varying_labels(labels)
    metrics = [summary["metrics"] for summary in summaries]
    headings = sweep_headings(metrics)
    table = new_table()
    table.show_edge = False  # the two columns it takes are what 80 lack
    for name in varying:
        table.add_column(name.replace("_", "_\n"), style="bold", no_wrap=True)
    for heading in headings.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for each, row in zip(metrics, labels, strict=True):
        texts = [metric_text(name, _figure(each, name)) for name in headings]
        figures = [text.removesuffix(" tok/s") for text in texts]
        table.add_row(*(str(row.get(name, NOTHING)) for name in varying), *figures)
    return table


def sweep_headings(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The figures of a sweep's rows and their headings; of service levels only where some row had one to meet."""
    has_slo = any(row.get(SLO_MET) is not None for row in rows)
    return {name: heading for name, heading in _SWEEP_FIGURES.items() if has_slo or name != SLO_MET}


def print_paper_figures(source: str, rows: Sequence[tuple[str, str, str, str]], file: TextIO | None = None) -> None:
    """Write (figure, the paper's, here, verdict) of what a sweep is to reproduce."""
    table = new_table()
    table.add_column("figure")
    table.add_column("paper", justify="right")
    table.add_column("here", justify="right")
    table.add_column("")
    for figure, paper, here, verdict in rows:
        table.add_row(figure, paper, here, Text(verdict, style="green" if verdict == "holds" else ""))
    print_tables(Text(f"Beside {source}:"), table, file=file)


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    """Simulated, measured, error, and the engine's own run-to-run spread; an error within that spread is marked."""
    table = new_table()
    table.add_column("metric")
    for column in ("simulated", "measured", "error", "engine's spread"):
        table.add_column(column, justify="right")
    for name in COMPARED:
        row = comparison["metrics"].get(name)
        if row is None:
            continue
        error = Text(
            error_text(row["error_ratio"]),
            style="green" if is_within_spread(row["error_ratio"], row["engine_spread_ratio"]) else "",
        )
        table.add_row(
            metric_label(name),
            metric_text(name, row["simulated"]),
            metric_text(name, row["measured"]),
            error,
            spread_text(row["engine_spread_ratio"]),
        )
    return table


def _latency_table(metrics: Mapping[str, Any]) -> Table:
    table = new_table()
    table.add_column("latency")
    for column in (*_COLUMNS, "n"):
        table.add_column(column, justify="right")
    for name in _LATENCIES:
        summary = metrics[name]
        scale, unit = time_unit(summary["p50"] or summary["max"] or 0.0)
        figures = [NOTHING if summary[column] is None else f"{summary[column] / scale:,.2f}" for column in _COLUMNS]
        table.add_row(f"{metric_label(name)} ({unit})", *figures, f"{summary['n']:,}")
    return table


def _figure_table(metrics: Mapping[str, Any]) -> Table:
    """Two figures a row. Those that the run does not define are left out; of prefix hits it is said that they are not:
    silence would read as none."""
    figures = {name: _figure(metrics, name) for name in _KEY_FIGURES}
    cells = [(metric_label(name), metric_text(name, value)) for name, value in figures.items() if value is not None]
    if figures["prefix_hit_ratio"] is None:
        cells.append((metric_label("prefix_hit_ratio"), "undefined"))
    outcomes = [(f"Requests {outcome}", f"{num:,}") for outcome, num in metrics["outcomes"].items() if num]
    cells += outcomes
    half = (len(cells) + 1) // 2
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 1))
    for _ in range(2):
        table.add_column()
        table.add_column(justify="right")
    for row in range(half):
        right = cells[half + row] if half + row < len(cells) else ("", "")
        table.add_row(*cells[row], *right)
    return table


def new_table() -> Table:
    """An empty table in the style of all others."""
    return Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))


def _figure(metrics: Mapping[str, Any], name: str) -> float | None:
    key, _, part = name.partition(".")
    value = metrics.get(key)
    return value.get(part) if part and value is not None else value


def varying_labels(labels: Sequence[Mapping[str, Any]]) -> list[str]:
    """The labels in which rows differ, in order of first appearance."""
    names = dict.fromkeys(name for row in labels for name in row)
    return [name for name in names if len({str(row.get(name)) for row in labels}) > 1]
