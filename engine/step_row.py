"""One sequence's work in a step, as the executor and the shadow see it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from core.request import Sequence
from engine.tokens import SequenceTokens


class StepRow(NamedTuple):
    """`num_new` tokens from position `start` on; logits are wanted where they reach the end of the known text.

    `block_tables` are the sequence's, one a KV group, when the step was decided.
    """

    sequence: Sequence
    tokens: SequenceTokens
    start: int
    num_new: int
    wants_logits: bool
    block_tables: list[np.ndarray]

    @property
    def end(self) -> int:
        return self.start + self.num_new
