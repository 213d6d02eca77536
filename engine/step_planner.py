"""The rows of one step after another. Where those decode that did in the step before, each is one token further."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

import numpy as np

from core.interfaces import Block
from core.plan import StepPlan
from core.request import Sequence
from engine.row_tables import RowTables
from engine.step_row import StepRows
from engine.tokens import TokenStore

TablesOf = Callable[[Sequence], SequenceOf[SequenceOf[Block | None]]]


class StepPlanner:
    """Reads plans in the order in which they were decided. `tables_of` gives the block tables that a sequence has."""

    def __init__(self, tokens: TokenStore, tables: RowTables, tables_of: TablesOf) -> None:
        self._tokens = tokens
        self._tables = tables
        self._tables_of = tables_of
        self._last = StepRows.of([])

    def rows(self, plan: StepPlan) -> StepRows:
        """The plan's work; puts the sequences' tables into their rows."""
        self._last = self._next(plan) or self._anew(plan)
        return self._last

    def _next(self, plan: StepPlan) -> StepRows | None:
        """Those of the step before, a token further; None where this step's are not these.

        The plan's sum of contexts tells whether they are: a sequence that decodes again has one token more.
        """
        last = self._last
        if plan.chunks or not last.sequences or plan.decoding() != last.sequences:
            return None
        start = last.start + 1
        num_context_tokens = int(start.sum()) + len(last)
        if num_context_tokens != plan.decode_context_tokens or plan.searches or not last.wants_logits.all():
            return None
        self._tables.bring_up_to_date(last.sequences, map(self._tables_of, last.sequences))
        return replace(last, start=start)

    def _anew(self, plan: StepPlan) -> StepRows:
        chunks = sorted(plan.chunks, key=lambda chunk: chunk.num_new > 1)
        decoding = plan.decoding()
        sequences = [*decoding, *(chunk.sequence for chunk in chunks)]
        start = [sequence.num_computed - 1 for sequence in decoding] + [chunk.num_computed for chunk in chunks]
        num_new = [1] * len(decoding) + [chunk.num_new for chunk in chunks]
        num_known = [sequence.num_known for sequence in sequences]
        place, tables_of = self._tables.place, self._tables_of
        table_rows = [place(sequence, tables_of(sequence)) for sequence in sequences]
        columns = (np.array(column, dtype=np.int64) for column in (start, num_new, num_known, table_rows))
        starts, lengths, known, rows = columns
        tokens = list(map(self._tokens.scheduled, sequences))
        return StepRows(sequences, tokens, starts, lengths, starts + lengths == known, rows)
