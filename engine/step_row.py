"""One sequence's work in a step, as the executor and the shadow see it, and that of all of them as columns."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import starmap
from typing import NamedTuple, overload

import numpy as np

from core.request import Sequence
from engine.tokens import SequenceTokens


class StepRow(NamedTuple):
    """`num_new` tokens from position `start` on; logits are wanted where they reach the end of the known text.

    `table_row` is that of the sequence in the block tables (`engine/row_tables.py`).
    """

    sequence: Sequence
    tokens: SequenceTokens
    start: int
    num_new: int
    wants_logits: bool
    table_row: int

    @property
    def end(self) -> int:
        return self.start + self.num_new


@dataclass(frozen=True, slots=True)
class StepRows(SequenceOf[StepRow]):
    """A step's work in the order in which a batch is packed, single tokens first; its rows are made when asked for.

    start, num_new, table_rows: int64 [num_rows]; wants_logits: bool [num_rows]. Where everybody decodes a token further
    than in the step before, all but `start` are the very objects of that step: who follows the steps need not look at
    them again.
    """

    sequences: list[Sequence]
    tokens: list[SequenceTokens]
    start: np.ndarray
    num_new: np.ndarray
    wants_logits: np.ndarray
    table_rows: np.ndarray

    @classmethod
    def of(cls, rows: SequenceOf[StepRow]) -> StepRows:
        sequences, tokens, start, num_new, wants_logits, table_rows = zip(*rows, strict=True) if rows else [()] * 6
        counts = (np.array(column, dtype=np.int64) for column in (start, num_new, table_rows))
        start_array, num_new_array, table_row_array = counts
        wants = np.array(wants_logits, dtype=bool)
        return cls(list(sequences), list(tokens), start_array, num_new_array, wants, table_row_array)

    def a_token_further(self) -> StepRows:
        """Of rows of one token each: those that follow."""
        start = self.start + 1
        return StepRows(self.sequences, self.tokens, start, self.num_new, self.wants_logits, self.table_rows)

    def follow(self, last: StepRows) -> bool:
        """Whether these are `last.a_token_further()`, of the rows of the step before."""
        return self.sequences is last.sequences

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[StepRow]:
        columns = self.start, self.num_new, self.wants_logits, self.table_rows
        return starmap(StepRow, zip(self.sequences, self.tokens, *(column.tolist() for column in columns), strict=True))

    @overload
    def __getitem__(self, index: int) -> StepRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[StepRow]: ...

    def __getitem__(self, index: int | slice) -> StepRow | list[StepRow]:
        if isinstance(index, slice):
            return list(self._part(index))
        (row,) = self._part(slice(index, index + 1))
        return row

    def _part(self, part: slice) -> StepRows:
        return StepRows(
            self.sequences[part],
            self.tokens[part],
            self.start[part],
            self.num_new[part],
            self.wants_logits[part],
            self.table_rows[part],
        )
