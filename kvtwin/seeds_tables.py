"""Terminal tables of runs over several seeds: means with intervals, and differences with a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.table import Table
from rich.text import Text

from kvtwin.formatting import COMPARED, NOTHING, SLO_MET, metric_label, metric_text
from kvtwin.intervals import Interval
from kvtwin.repeats import Repeats
from kvtwin.tables import new_table, print_tables, sweep_headings, varying_labels


def print_seeds(repeats: Sequence[Repeats], folders: Sequence[str] = (), file: TextIO | None = None) -> None:
    """Write a row a configuration: each figure's mean, and below it half its interval. Then the differences.

    `folders` are the names of those in which the means are kept, if they are.
    """
    print_tables(Text(f"\nMeans over seeds, ± 95 % t-interval, {_counts(repeats)}:"), file=file)
    kept = [{"run": folder} for folder in folders] or [{}] * len(repeats)
    labels = [{**each.labels, **run} for each, run in zip(repeats, kept, strict=True)]
    names = varying_labels(labels)
    rows = [each.figures() for each in repeats]
    headings = sweep_headings(rows)
    cells = [[_mean_text(name, row.get(name)) for name in headings] for row in rows]
    print_tables(_table(names, labels, headings.values(), cells), file=file)
    print_differences(repeats, file)


def print_differences(repeats: Sequence[Repeats], file: TextIO | None = None) -> None:
    """Write how each configuration differs from the first one with the same traces, seed by seed."""
    for first in _baselines(repeats):
        others = [each for each in repeats if each is not first and each.has_traces_of(first) and len(first.runs) > 1]
        if not others:
            continue
        labels = [each.labels for each in (first, *others)]
        names = varying_labels(labels)
        against = " ".join(str(first.labels[name]) for name in names if name in first.labels)
        head = f"\nDifference to {against or 'the first'} on the same traces, seed by seed, ± 95 % t-interval"
        print_tables(Text(f"{head} (in brackets: not resolved):"), file=file)
        rows = [each.less(first) for each in others]
        headings = sweep_headings(rows)
        cells = [[_difference_text(name, row.get(name)) for name in headings] for row in rows]
        print_tables(_table(names, labels[1:], headings.values(), cells), file=file)


def comparison_of(first: Repeats, second: Repeats) -> Table:
    """A against B: both means, the difference B - A with its paired interval, and what can be said of it."""
    table = new_table()
    table.add_column("metric")
    for column in ("A", "B", "B − A", "± 95 %", ""):
        table.add_column(column, justify="right")
    ours, theirs, differences = first.figures(), second.figures(), second.less(first)
    for name in (*COMPARED, SLO_MET):
        if name not in differences:
            continue
        difference = differences[name]
        table.add_row(
            metric_label(name),
            metric_text(name, ours[name].mean),
            metric_text(name, theirs[name].mean),
            signed_text(name, difference.mean),
            size_text(name, difference.half_width),
            Text(verdict(difference), style="green" if difference.excludes_zero else ""),
        )
    return table


def verdict(difference: Interval) -> str:
    """What a paired difference says."""
    if difference.num == 1:
        return "equal" if difference.mean == 0 else "one seed"
    if difference.mean == 0 and difference.half_width == 0:
        return "equal"
    return "resolved" if difference.excludes_zero else "not resolved"


def signed_text(name: str, value: float) -> str:
    """A difference with its sign; shares differ by percentage points."""
    text = size_text(name, abs(value))
    return text if value == 0 else f"{'+' if value > 0 else '−'}{text}"


def size_text(name: str, value: float | None) -> str:
    """The size of a difference, or half an interval."""
    return metric_text(name, value).replace(" %", " pp")


def _baselines(repeats: Sequence[Repeats]) -> list[Repeats]:
    """The first configuration of each set of traces."""
    found: list[Repeats] = []
    for each in repeats:
        if not any(each.has_traces_of(first) for first in found):
            found.append(each)
    return found


def _counts(repeats: Sequence[Repeats]) -> str:
    nums = sorted({len(each.runs) for each in repeats})
    return f"n = {nums[0]}" if len(nums) == 1 else f"n = {nums[0]} to {nums[-1]}"


def _mean_text(name: str, figure: Interval | None) -> str:
    if figure is None:
        return f"{NOTHING}\n"
    return _bare(f"{metric_text(name, figure.mean)}\n±{size_text(name, figure.half_width)}")


def _difference_text(name: str, figure: Interval | None) -> str:
    if figure is None:
        return f"{NOTHING}\n"
    text = signed_text(name, figure.mean)
    shown = text if figure.excludes_zero or figure.mean == 0 else f"({text})"
    return _bare(f"{shown}\n±{size_text(name, figure.half_width)}")


def _bare(text: str) -> str:
    return text.replace(" tok/s", "")


def _table(
    names: Sequence[str],
    labels: Sequence[Mapping[str, Any]],
    headings: Iterable[str],
    cells: Sequence[Sequence[str]],
) -> Table:
    table = new_table()
    table.show_edge = False
    for name in names:
        table.add_column(name.replace("_", "_\n"), style="bold", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row, figures in zip(labels, cells, strict=True):
        table.add_row(*(str(row.get(name, NOTHING)) for name in names), *figures)
    return table
