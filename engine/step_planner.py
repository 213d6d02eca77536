"""The rows of one step after another. Where those decode that did in the step before, each is one token further."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from core.interfaces import Block
from core.plan import StepPlan
from core.request import Sequence
from engine.row_tables import RowTables
from engine.step_row import StepRow, StepRows
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
        decodes = [self._row(sequence, sequence.num_computed - 1, 1) for sequence in plan.decoding()]
        chunks = [self._row(*chunk) for chunk in plan.chunks]
        chunks.sort(key=lambda row: row.num_new > 1)
        return StepRows.of(decodes + chunks)

    def _row(self, sequence: Sequence, start: int, num_new: int) -> StepRow:
        wants_logits = start + num_new == sequence.num_known
        table_row = self._tables.place(sequence, self._tables_of(sequence))
        return StepRow(sequence, self._tokens.scheduled(sequence), start, num_new, wants_logits, table_row)
