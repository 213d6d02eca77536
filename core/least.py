"""Who has the least, in a fleet: a look at each, as machine code where there is any."""

from __future__ import annotations


def first_least(values: list[int]) -> int:
    """The place of the smallest, the first of equals. Raises IndexError where there is none. O(values)."""
    place, least = 0, values[0]
    for number, value in enumerate(values):
        if value < least:
            place, least = number, value
    return place


def largest(values: list[int]) -> int:
    """Raises IndexError where there is none. O(values)."""
    most = values[0]
    for value in values:
        most = max(most, value)
    return most
