"""Values of one row: whole numbers and exact times, or BadRow."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from traces.ragged import IntArray
from traces.readers.bad_rows import BadRow
from traces.readers.json_text import MAX_CHARACTERS_UNMEASURED, decode_at, parse_json

INT64_MAX = 2**63 - 1
MAX_TOKENS = 2**31 - 1
PS_PER_NS = 10**3
PS_PER_MS = 10**9
PS_PER_S = 10**12
_INT = {int}
_AN_OBJECT = "one JSON object a line"


def json_object(line: str) -> dict[str, Any]:
    """The JSON object on one line; numbers with a point come as Decimal, so that times stay exact."""
    try:
        row = parse_json(line)
    except (ValueError, RecursionError) as error:
        start = getattr(error, "pos", 0)
        is_cut = start >= len(line.rstrip()) or str(error).startswith("Unterminated string")
        expected = f"{_AN_OBJECT} (was the file cut off?)" if is_cut else _AN_OBJECT
        raise BadRow("malformed_row", str(start + 1), line[start:], expected, "character") from error
    if not isinstance(row, dict):
        raise BadRow("malformed_row", "1", line, _AN_OBJECT, "character")
    return row


def json_objects(text: str) -> list[dict[str, Any]] | None:
    """The JSON objects of some lines. None unless each line is one and nothing else, and all of them are plain: not too
    large to be taken together, and no value among them true or false.
    """
    if len(text) > MAX_CHARACTERS_UNMEASURED or "true" in text or "false" in text:
        return None
    text = text.replace("\r\n", "\n")
    objects, at = [], 0
    try:
        while at < len(text):
            value, end = decode_at(text, at)
            if text[end : end + 1] not in ("\n", ""):
                return None
            objects.append(value)
            at = end + 1
    except (ValueError, RecursionError):
        return None
    num_lines = text.count("\n") + (not text.endswith("\n"))
    return objects if len(objects) == num_lines and set(map(type, objects)) == {dict} else None


def required(row: dict[str, Any], key: str, expected: str) -> Any:
    """The value under `key`, which must be there."""
    if key not in row:
        raise BadRow("missing_value", key, None, expected)
    return row[key]


def whole_number(key: str, value: object, least: int = -INT64_MAX, most: int = INT64_MAX) -> int:
    """An integer between two bounds, in 64 bits (true, text and 1.0 are not integers)."""
    if type(value) is not int or not least <= value <= most:
        raise BadRow("bad_value", key, value, f"a whole number from {least} to {most}")
    return value


def num_tokens(key: str, value: object, what: str) -> int:
    """A number of tokens; zero has a reason of its own (`zero_prompt`, `zero_output`): so are failed calls logged."""
    if type(value) is int and value == 0:
        raise BadRow(f"zero_{what}", key, value, f"at least 1 {what} token (trace.on_error=skip leaves such rows out)")
    return whole_number(key, value, least=1, most=MAX_TOKENS)


def time_ps(key: str, value: object, ps_per_unit: int) -> int:
    """A time from 0 on to the nearest picosecond: exact, but for the noise of floats (0.30000000000000004)."""
    if type(value) is not int and type(value) is not Decimal:
        raise BadRow("bad_time", key, value, "a number from 0 on")
    latest = INT64_MAX // ps_per_unit
    if not 0 <= value <= latest:
        expected = f"a number from 0 to {latest} (106 days; does it count from 1970, or in another unit?)"
        raise BadRow("bad_time", key, value, expected)
    return round(value * ps_per_unit)


def whole_number_column(values: Sequence[Any], least: int, most: int) -> IntArray | None:
    """Values of `json_objects` as a column. None unless all are integers between two bounds, in 64 bits."""
    try:
        packed = struct.pack(f"{len(values)}q", *values)  # takes integers alone; but true, too, would be a 1
    except struct.error:
        return None
    column = np.frombuffer(packed, dtype=np.int64)
    return column if not len(column) or (column.min() >= least and column.max() <= most) else None


def whole_numbers(key: str, values: object) -> list[int]:
    """A list of integers that fit in 64 bits."""
    if not isinstance(values, list):
        raise BadRow("bad_value", key, values, "a list of whole numbers")
    if not _all_int64(values):
        culprit = next(value for value in values if not _all_int64([value]))
        raise BadRow("bad_value", key, culprit, "whole numbers below 2^63")
    return values


def named_ids(key: str, values: object) -> list[int]:
    """Block ids of a file: whole numbers from 0 on."""
    ids = whole_numbers(key, values)
    if ids and min(ids) < 0:
        raise BadRow("bad_value", key, min(ids), "ids from 0 on")
    return ids


def block_ids(key: str, values: object, num_prompt_tokens: int, hash_block_tokens: int) -> list[int]:
    """One id a block of the prompt, the partial last block included."""
    ids = named_ids(key, values)
    num_blocks = -(-num_prompt_tokens // hash_block_tokens)
    if len(ids) != num_blocks:
        expected = f"{num_blocks} = ceil({num_prompt_tokens} / {hash_block_tokens})"
        raise BadRow("hash_block_mismatch", key, f"{len(ids)} ids", expected)
    return ids


def _all_int64(values: list[Any]) -> bool:
    if not set(map(type, values)) <= _INT:  # a trace has hundreds of thousands: looked at without a step each
        return False
    return not values or (min(values) >= -INT64_MAX and max(values) <= INT64_MAX)
