"""Terminal tables of rankings: what was simulated and measured of each configuration, and whether the orders agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from kvtwin.formatting import NOTHING, metric_label, metric_text
from kvtwin.ranking import RANKED, Ranking
from kvtwin.tables import new_table, print_tables


def print_rankings(rankings: Sequence[Ranking], file: TextIO | None = None) -> None:
    """Write two tables for each: a row a configuration, measured below simulated; then a row a metric."""
    for ranking in rankings:
        head = f"\nRanking of {len(ranking.members)} configurations on {ranking.trace_name}, simulated and measured:"
        print_tables(Text(head), figures_table(ranking), agreement_table(ranking.agreements()), file=file)
    if rankings:
        told_apart = "told apart: measured figures differ by more than the engine's own runs of either do"
        print_tables(Text(told_apart), file=file)


def figures_table(ranking: Ranking) -> Table:
    """What the configurations are ranked by: simulated, and below it measured."""
    table = new_table()
    table.show_edge = False
    table.add_column("configuration", style="bold", no_wrap=True)
    table.add_column("")
    for name in RANKED:
        table.add_column(metric_label(name), justify="right", no_wrap=True)
    for configuration, validated in ranking.members.items():
        cells = [_both(name, validated.metrics.get(name, {})) for name in RANKED]
        table.add_row(configuration, "simulated\nmeasured", *cells)
    return table


def agreement_table(agreements: Mapping[str, Mapping[str, Any]]) -> Table:
    table = new_table()
    table.add_column("ranked by")
    for column in ("best simulated", "best measured"):
        table.add_column(column)
    for column in ("Kendall's\ntau", "pairs\ntold apart", "of these\nalike"):
        table.add_column(column, justify="right")
    for name, found in agreements.items():
        agrees, tau = found["best_agrees"], found["kendall_tau"]
        table.add_row(
            metric_label(name),
            ", ".join(found["best_simulated"]),
            Text(", ".join(found["best_measured"]), style="green" if agrees else ""),
            NOTHING if tau is None else f"{tau:.2f}".replace("-", "−"),
            NOTHING if found["num_told_apart"] is None else f"{found['num_told_apart']} of {found['num_pairs']}",
            NOTHING if not found["num_told_apart"] else str(found["num_told_apart_alike"]),
        )
    return table


def _both(name: str, row: Mapping[str, float | None]) -> str:
    return f"{metric_text(name, row.get('simulated'))}\n{metric_text(name, row.get('measured'))}"
