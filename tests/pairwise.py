"""A few rows in which every pair of values of any two parameters occurs: most faults need no more than two."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(parameters: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of one value for each parameter, by a greedy search that is the same every time."""
    names = list(parameters)
    columns = [range(len(parameters[name])) for name in names]
    missing = {
        ((a, i), (b, j)) for a, b in combinations(range(len(names)), 2) for i, j in product(columns[a], columns[b])
    }
    rows = []
    while missing:
        row = _grown(min(missing), columns, missing)
        missing -= _pairs(row)
        rows.append({name: parameters[name][row[column]] for column, name in enumerate(names)})
    return rows


_Cell = tuple[int, int]


def _grown(first: tuple[_Cell, _Cell], columns: Sequence[range], missing: set[tuple[_Cell, _Cell]]) -> dict[int, int]:
    """A whole row that holds the pair `first`; every further value is the one that covers most missing pairs."""
    row = dict(first)
    for column in (column for column in range(len(columns)) if column not in row):
        gains = [len(missing & _pairs_with(row, column, value)) for value in columns[column]]
        row[column] = gains.index(max(gains))
    return row


def _pairs(row: Mapping[int, int]) -> set[tuple[_Cell, _Cell]]:
    return set(combinations(sorted(row.items()), 2))


def _pairs_with(row: Mapping[int, int], column: int, value: int) -> set[tuple[_Cell, _Cell]]:
    others: Iterable[_Cell] = row.items()
    return {tuple(sorted([other, (column, value)])) for other in others}  # type: ignore[misc]
