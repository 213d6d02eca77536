"""Rows of a Mooncake trace as columns: those of its original form together, block by block, all others one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from traces.ragged import IntArray, Ragged
from traces.readers.bad_rows import BadRows, good_rows
from traces.readers.fields import INT64_MAX, MAX_TOKENS, PS_PER_MS, json_object, json_objects, whole_number_column
from traces.readers.mooncake_row import Row, RowParser
from traces.readers.source import LineBlock, Source

_KEYS = ("timestamp", "input_length", "output_length", "hash_ids")  # of the original form, which has no others
_values_of = itemgetter(*_KEYS)


class Columns(NamedTuple):
    """Some rows. One has no block ids where nothing is known of its prompt, and the session -1 where it is of none."""

    arrival_ps: IntArray
    num_prompt_tokens: IntArray
    num_output_tokens: IntArray
    block_ids: Ragged
    session: IntArray
    parent: IntArray
    think_time_ps: IntArray

    @property
    def num_rows(self) -> int:
        return len(self.arrival_ps)

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """The rows of all parts, of which there is one at least."""
        return cls(
            np.concatenate([part.arrival_ps for part in parts]),
            np.concatenate([part.num_prompt_tokens for part in parts]),
            np.concatenate([part.num_output_tokens for part in parts]),
            Ragged.joined([part.block_ids for part in parts]),
            np.concatenate([part.session for part in parts]),
            np.concatenate([part.parent for part in parts]),
            np.concatenate([part.think_time_ps for part in parts]),
        )


class BlockReader:
    """Reads one block of lines after the other."""

    def __init__(self, source: Source, bad_rows: BadRows, parse: RowParser) -> None:
        self._source = source
        self._bad_rows = bad_rows
        self._parse = parse

    def read(self, block: LineBlock) -> Columns:
        """The good rows of the block; raises InputError as `bad_rows` decides, and where the block is no text."""
        objects = json_objects(self._source.text(block))
        if objects is None:
            lines = self._source.lines_of(block)
            return _columns(good_rows(self._source, lines, self._parse_line, self._bad_rows))
        plain = _plain_columns(objects, self._parse.block_tokens)
        if plain is None:
            numbered = enumerate(objects, start=block.first_line_number)
            return _columns(good_rows(self._source, numbered, self._parse, self._bad_rows))
        self._parse.pass_over(plain.num_rows, int(plain.arrival_ps[-1]))
        return plain

    def _parse_line(self, line: str) -> Row:
        return self._parse(json_object(line))


def _plain_columns(objects: Sequence[dict[str, Any]], block_tokens: int) -> Columns | None:
    """The rows, if all of them have the original form and are good."""
    if set(map(len, objects)) != {len(_KEYS)}:
        return None
    try:
        timestamps, prompts, outputs, ids = zip(*map(_values_of, objects), strict=True)
    except KeyError:
        return None
    if set(map(type, ids)) != {list}:
        return None
    arrival_ms = whole_number_column(timestamps, 0, INT64_MAX // PS_PER_MS)
    num_prompt_tokens = whole_number_column(prompts, 1, MAX_TOKENS)
    num_output_tokens = whole_number_column(outputs, 1, MAX_TOKENS)
    block_ids = whole_number_column(list(chain.from_iterable(ids)), 0, INT64_MAX)
    if arrival_ms is None or num_prompt_tokens is None or num_output_tokens is None or block_ids is None:
        return None
    rows = Ragged(block_ids, np.cumsum([0, *map(len, ids)], dtype=np.int64))
    if not np.array_equal(rows.row_lengths, -(-num_prompt_tokens // block_tokens)):
        return None
    none = np.full(len(objects), -1, dtype=np.int64)
    return Columns(arrival_ms * PS_PER_MS, num_prompt_tokens, num_output_tokens, rows, none, none, none)


def _columns(numbered_rows: Sequence[tuple[int, Row]]) -> Columns:
    rows = [row for _, row in numbered_rows]
    return Columns(
        np.array([row.arrival_ps for row in rows], dtype=np.int64),
        np.array([row.num_prompt_tokens for row in rows], dtype=np.int64),
        np.array([row.num_output_tokens for row in rows], dtype=np.int64),
        Ragged.of_arrays([row.block_ids for row in rows]),
        np.array([row.session for row in rows], dtype=np.int64),
        np.array([row.link.parent for row in rows], dtype=np.int64),
        np.array([row.link.think_time_ps for row in rows], dtype=np.int64),
    )
