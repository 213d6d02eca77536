"""One sequence's work in a step, as the executor and the shadow see it."""

from __future__ import annotations

from typing import NamedTuple

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
