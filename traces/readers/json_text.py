"""JSON with exact numbers, and in memory of no more than about ten times its text."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

MAX_CHARACTERS_UNMEASURED = 1 << 21  # what they can cost at most (some 60 MiB) is let pass
_BLANKS = " \t\n\r"
_MAX_BYTES_PER_CHARACTER = 9
_DECODER = json.JSONDecoder(parse_float=Decimal)  # `json.loads` would make one for each text
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # possessive: in proportion to the text, whatever is in it
# What CPython takes for a value, by a mark that it has in the text; a key is shared by all objects that have it.
_BYTES_EACH = {
    "{": 180,
    "[": 90,
    ".": 112,
    "e": 112,
    "E": 112,
    '""': 60,
    '"":': -60,
    "true": -112,
    "false": -112,
    ",": 9,
}


def parse_json(text: str) -> Any:
    """The value of a JSON text; numbers with a point or an exponent come as Decimal, so that times stay exact.

    Raises ValueError where it is not JSON or, in a large text, where its values are so small and many that they would
    take far more memory than it; RecursionError where it is nested too deep.
    """
    if len(text) > MAX_CHARACTERS_UNMEASURED:
        cost_bytes = _cost_bytes(text)
        if cost_bytes > _MAX_BYTES_PER_CHARACTER * len(text):
            raise ValueError(f"{len(text):,} characters of JSON would take {cost_bytes:,} bytes of memory")
    if text[:1] in ("{", "["):  # nearly always: no blanks are looked for before the value
        value, end = _DECODER.raw_decode(text)
        if not text[end:].strip(_BLANKS):
            return value
    return _DECODER.decode(text)


def decode_at(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at a place of a text, as `parse_json` makes it, and where it ends.

    Raises ValueError where none begins there; RecursionError where nested too deep. Its size is the caller's care.
    """
    return _DECODER.raw_decode(text, start)


def _cost_bytes(text: str) -> int:
    """About what the values of a JSON text take in memory, beyond the text of its strings."""
    skeleton = _STRING.sub('""', text)
    return sum(each * skeleton.count(mark) for mark, each in _BYTES_EACH.items())
