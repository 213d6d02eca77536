"""A demonstration on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvtwin.demonstrations.demonstration import Demonstration


def demonstration_screen(shown: Demonstration) -> Group:
    """Its title, its table, and what the figures say."""
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    for column in shown.header:
        table.add_column(column, justify="right")
    for row in shown.rows:
        table.add_row(*row)
    return Group(Text(shown.title, style="bold"), table, *map(Text, shown.findings))
