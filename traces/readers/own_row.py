"""One request of kvtwin's own trace format: its keys, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from traces.readers.bad_rows import BadRow
from traces.readers.fields import (
    MAX_TOKENS,
    PS_PER_S,
    block_ids,
    json_object,
    num_tokens,
    required,
    time_ps,
    whole_number,
    whole_numbers,
)

_seconds_ps = partial(time_ps, ps_per_unit=PS_PER_S)


class Optional(NamedTuple):
    """An optional key of a row: the column it fills, how its value is read, what `null` or no key means."""

    column: str
    read: Callable[[str, Any], int]
    default: int


OPTIONAL_KEYS = {
    "session_id": Optional("session_id", whole_number, -1),
    "parent": Optional("parent", partial(whole_number, least=0), -1),
    "think_time_s": Optional("think_time_ps", _seconds_ps, -1),
    "priority": Optional("priority", whole_number, 0),
    "tenant": Optional("tenant", whole_number, 0),
    "hash_salt": Optional("hash_salt", whole_number, 0),
    "num_samples": Optional("num_samples", partial(whole_number, least=1), 1),
    "cancel_after_s": Optional("cancel_after_ps", _seconds_ps, -1),
    "deadline_s": Optional("deadline_ps", _seconds_ps, -1),
    "category": Optional("category", partial(whole_number, least=0), -1),
}
_CONTENT_KEYS = frozenset({"hash_ids", "prompt_segments", "output_segments"})
_KEYS = frozenset({"arrival_s", "num_prompt_tokens", "num_output_tokens", *_CONTENT_KEYS, *OPTIONAL_KEYS})


_NO_OPTIONAL: Mapping[str, int] = MappingProxyType({})


class Row(NamedTuple):
    """A parsed request; `optional` has the values of the optional keys it has, `content` the content keys it has."""

    number: int  # of the file's requests, those that are left out included
    arrival_ps: int
    num_prompt_tokens: int
    num_output_tokens: int
    hash_ids: Sequence[int]
    prompt_segments: Sequence[Sequence[int]]
    output_segments: Sequence[Sequence[int]]
    optional: Mapping[str, int]
    content: frozenset[str]


class RowParser:
    """Parses one row after the other; the first good row settles which of the content keys every row must have."""

    def __init__(self, hash_block_tokens: int | None) -> None:
        self._hash_block_tokens = hash_block_tokens
        self._content: frozenset[str] | None = None
        self._num_rows = 0

    def __call__(self, line: str) -> Row:
        number = self._num_rows
        self._num_rows += 1
        values = json_object(line)
        content = self._checked_content(values)
        prompt_segments = _segments(values, "prompt_segments")
        output_segments = _segments(values, "output_segments")
        num_prompt_tokens = _count(values, "num_prompt_tokens", "prompt", prompt_segments)
        num_output_tokens = _count(values, "num_output_tokens", "output", output_segments)
        hash_ids: Sequence[int] = ()
        if self._hash_block_tokens is not None:
            hash_ids = block_ids("hash_ids", values["hash_ids"], num_prompt_tokens, self._hash_block_tokens)
        row = Row(
            number,
            _seconds_ps("arrival_s", required(values, "arrival_s", "seconds from the start of the trace")),
            num_prompt_tokens,
            num_output_tokens,
            hash_ids,
            prompt_segments,
            output_segments,
            _optional_values(values),
            content,
        )
        self._content = content
        return row

    def _checked_content(self, values: dict[str, Any]) -> frozenset[str]:
        """The content keys of a row whose keys are as they should be."""
        if not values.keys() <= _KEYS:
            unknown = sorted(values.keys() - _KEYS)
            near = get_close_matches(unknown[0], sorted(_KEYS), n=1) or sorted(_KEYS)
            raise BadRow("unknown_key", unknown[0], values[unknown[0]], f"a known key, such as {', '.join(near)}")
        content = _CONTENT_KEYS.intersection(values)
        if ("hash_ids" in content) != (self._hash_block_tokens is not None):
            expected = "hash_ids in every row and hash_block_tokens in the header, or neither"
            raise BadRow("mixed_content", "hash_ids", values.get("hash_ids"), expected)
        if self._content is not None and content != self._content:
            expected = f"the keys of the rows before: {', '.join(sorted(self._content)) or 'none of these'}"
            raise BadRow("mixed_content", ", ".join(sorted(content ^ self._content)), None, expected)
        return content


def _optional_values(values: dict[str, Any]) -> Mapping[str, int]:
    if OPTIONAL_KEYS.keys().isdisjoint(values):
        return _NO_OPTIONAL
    return {key: _optional(values, key) for key in OPTIONAL_KEYS if key in values}


def _optional(values: dict[str, Any], key: str) -> int:
    optional = OPTIONAL_KEYS[key]
    return optional.default if values[key] is None else optional.read(key, values[key])


def _segments(values: dict[str, Any], key: str) -> Sequence[list[int]]:
    if key not in values:
        return ()
    pairs = values[key]
    if not isinstance(pairs, list) or not pairs:
        raise BadRow("bad_value", key, pairs, "a list of [start_token, num_tokens]")
    for pair in pairs:
        if len(whole_numbers(key, pair)) != 2 or pair[0] < 0 or pair[1] < 1 or sum(pair) > MAX_TOKENS:
            raise BadRow("bad_value", key, pair, "[start_token >= 0, num_tokens >= 1], together below 2^31")
    found: list[list[int]] = pairs
    return found


def _count(values: dict[str, Any], key: str, what: str, segments: Sequence[list[int]]) -> int:
    if not segments:
        return num_tokens(key, required(values, key, f"the number of {what} tokens"), what)
    in_segments = sum(length for _, length in segments)
    if key not in values:
        return in_segments
    count = num_tokens(key, values[key], what)
    if count != in_segments:
        raise BadRow("segment_mismatch", key, count, f"{in_segments}, the sum of the {what} segments")
    return count
