"""Prompts that a file holds as text: they become tokens by a tokenizer that the caller brings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.errors import InputError
from traces.readers.bad_rows import BadRow
from traces.readers.source import Source

Encode = Callable[[str], Sequence[int]]
TEXT_BLOCK_TOKENS = 16  # of formats that have tokens and no blocks of their own


def tokenizer_for(source: Source, encode: Encode | None) -> Encode:
    """The caller's tokenizer; where there is none, one that raises InputError at the first text."""
    return encode or _Missing(source)


def encoded(key: str, text: object, encode: Encode) -> Sequence[int]:
    """The tokens of a text. Raises BadRow where it is none."""
    if not isinstance(text, str):
        raise BadRow("bad_value", key, text, "a text")
    return encode(text)


class _Missing:
    def __init__(self, source: Source) -> None:
        self._source = source

    def __call__(self, text: str) -> Sequence[int]:
        expected = "a tokenizer: trace.tokenizer=FILE (a tokenizer.json), or bytes/4, an estimate"
        raise InputError(f"{self._source.path}: holds text; expected {expected}")
