"""From a story that shows a fault to a short one: what can be left out is left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

ItemT = TypeVar("ItemT")
MOST_TRIES = 400


def shortened(items: Sequence[ItemT], shows: Callable[[Sequence[ItemT]], bool]) -> list[ItemT]:
    """A subsequence that still `shows` the fault, and of which no single item can be left out.

    Runs are tried first, each half as long as those before. After MOST_TRIES what is left is returned as it is.
    """
    kept, length, num_tries = list(items), max(1, len(items) // 2), 0
    while kept:
        start, is_shorter = 0, False
        while start < len(kept) and num_tries < MOST_TRIES:
            num_tries += 1
            candidate = kept[:start] + kept[start + length :]
            if shows(candidate):
                kept, is_shorter = candidate, True
            else:
                start += length
        if num_tries >= MOST_TRIES or (length == 1 and not is_shorter):
            break
        length = max(1, length // 2)
    return kept


def simplified(
    items: Sequence[ItemT], simpler: Callable[[ItemT], Sequence[ItemT]], shows: Callable[[Sequence[ItemT]], bool]
) -> list[ItemT]:
    """The same number of items, each replaced by the first of its `simpler` forms with which the fault still shows."""
    kept = list(items)
    for place, item in enumerate(kept):
        for candidate in simpler(item):
            changed = [*kept[:place], candidate, *kept[place + 1 :]]
            if shows(changed):
                kept = changed
                break
    return kept
