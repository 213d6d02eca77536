"""The rows of one step after another. Where those decode that did in the step before, each is one token further."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

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
        self._last_ranks: list[int] = []  # of the last rows, where each has decoded; else empty
        self._context_tokens = 0  # of theirs

    def rows(self, plan: StepPlan) -> StepRows:
        """The plan's work; puts the sequences' tables into their rows."""
        self._last = self._next(plan) or self._anew(plan)
        self._context_tokens = plan.decode_context_tokens
        return self._last

    def _next(self, plan: StepPlan) -> StepRows | None:
        """Those of the step before, a token further; None where this step's are not these.

        No rank is given twice, and members that are listed alike are in running order alike. The sums of contexts tell
        whether each has one token more.
        """
        ranks = self._last_ranks
        if not ranks or plan.chunks or plan.held or plan.searches or list(plan.batch.members) != ranks:
            return None
        if plan.decode_context_tokens != self._context_tokens + len(ranks):
            return None
        self._tables.bring_up_to_date(self._last.sequences, map(self._tables_of, self._last.sequences))
        return self._last.a_token_further()

    def _anew(self, plan: StepPlan) -> StepRows:
        chunks = sorted(plan.chunks, key=lambda chunk: chunk.num_new > 1)
        decoding = plan.decoding()
        sequences = [*decoding, *(chunk.sequence for chunk in chunks)]
        before = plan.batch.clock - 1  # the step's own tokens count as having KV already
        start = [before + sequence.offset for sequence in decoding] + [chunk.num_computed for chunk in chunks]
        num_new = [1] * len(decoding) + [chunk.num_new for chunk in chunks]
        num_known = [place + 1 for place in start[: len(decoding)]] + [chunk.sequence.num_known for chunk in chunks]
        table_rows = self._tables.place(sequences, map(self._tables_of, sequences))
        columns = (np.array(column, dtype=np.int64) for column in (start, num_new, num_known, table_rows))
        starts, lengths, known, rows = columns
        tokens = list(map(self._tokens.scheduled, sequences))
        wants_logits = starts + lengths == known
        has_decoded = not chunks and not plan.held and bool(wants_logits.all())
        self._last_ranks = list(plan.batch.members) if has_decoded else []
        return StepRows(sequences, tokens, starts, lengths, wants_logits, rows)
