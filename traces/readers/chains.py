"""Turns that wait for the turn before them, also where a turn between them is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from traces.readers.fields import INT64_MAX
from traces.schema import IntArray


def later_ps(time_ps: int, by_ps: int) -> int:
    """The sum of two times; where 64 bits do not hold it (106 days), the last time that they do hold."""
    return min(time_ps + by_ps, INT64_MAX)


class Link(NamedTuple):
    """What a row waits for: the index of its parent, and how long after the parent's end it comes (-1: unknown)."""

    parent: int = -1
    think_time_ps: int = -1


class Chain:
    """One session's turns in order; `parent` is the row that the first of them waits for (-1: none)."""

    def __init__(self, parent: int = -1) -> None:
        self.last_row = parent
        self.left_out_ps = 0  # spent since then on turns that were left out

    def link(self, think_time_ps: int) -> Link:
        """How the next turn hangs on the last one that was kept: waits of turns left out between them are added."""
        if self.last_row < 0:
            return Link()
        if think_time_ps < 0:
            return Link(self.last_row)
        return Link(self.last_row, later_ps(self.left_out_ps, think_time_ps))

    def keep(self, row: int) -> None:
        """The turn became this row."""
        self.last_row = row
        self.left_out_ps = 0

    def leave_out(self, waited_ps: int) -> None:
        """The turn did not become a row; the session spent this long on it."""
        self.left_out_ps = later_ps(self.left_out_ps, max(0, waited_ps))


def link_columns(links: Sequence[Link]) -> dict[str, IntArray]:
    """The columns `parent` and `think_time_ps`, where any row waits for another."""
    if all(link.parent < 0 for link in links):
        return {}
    return {
        "parent": np.array([link.parent for link in links], dtype=np.int64),
        "think_time_ps": np.array([link.think_time_ps for link in links], dtype=np.int64),
    }
