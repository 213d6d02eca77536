"""What a trace that no format recognises was probably meant to be: most often a column's name is misspelt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches

_NAME = re.compile(r"[A-Za-z]\w{3,}")
_ALIKE = 0.8  # difflib's ratio: one letter wrong in five
_LEAST_NAMES = 2  # a time alone says nothing


def nearest_format(first_line: str, descriptions: Mapping[str, str]) -> str | None:
    """The format most of whose described names stand in the line, or nearly so; None where fewer than two do.

    Of equally near formats the first.
    """
    present = set(_NAME.findall(first_line))

    def num_present(name: str) -> int:
        return sum(bool(get_close_matches(word, present, 1, _ALIKE)) for word in set(_NAME.findall(descriptions[name])))

    nearest = max(descriptions, key=num_present)
    return nearest if num_present(nearest) >= _LEAST_NAMES else None
