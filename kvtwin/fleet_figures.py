"""A summary's block `fleet` as rows of text, for the terminal and for reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvtwin.formatting import NOTHING

COLUMNS = ("min", "mean", "max", "max/mean")
FIGURES = {
    "num_requests": "Requests",
    "prompt_tokens": "Prompt tokens",
    "prefix_hit_tokens": "Prefix hit tokens",
    "output_tokens": "Output tokens",
    "referenced_blocks": "Blocks in use, time mean",
    "num_evictions": "Evictions",
    "num_preemptions": "Preemptions",
}


def heading(fleet: Mapping[str, Any]) -> str:
    return f"{fleet['num_replicas']:,} replicas"


def spread_rows(fleet: Mapping[str, Any]) -> list[list[str]]:
    """How the work was spread, a row a figure: its label, least, mean and most of a replica, and most over mean."""
    return [[label, *_spread(fleet["replicas"][name])] for name, label in FIGURES.items()]


def replica_rows(fleet: Mapping[str, Any]) -> list[list[str]]:
    """A row a replica: its number, and the figures in the order of FIGURES."""
    columns = [fleet["replicas"][name] for name in FIGURES]
    return [[str(number), *(f"{value:,.0f}" for value in row)] for number, row in enumerate(zip(*columns, strict=True))]


def _spread(values: list[float]) -> list[str]:
    mean = sum(values) / len(values)
    shown = [f"{value:,.0f}" for value in (min(values), mean, max(values))]
    return [*shown, f"{max(values) / mean:.2f}" if mean else NOTHING]
