"""The one shape of a request trace: numpy columns, one entry a request, sorted by arrival."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from core.errors import InputError
from traces.key_book import KeyBook
from traces.ragged import IntArray, Ragged

__all__ = ["OPTIONAL_COLUMNS", "IntArray", "Ragged", "Trace"]

OPTIONAL_COLUMNS = (
    "session_id",
    "parent",
    "think_time_ps",
    "priority",
    "tenant",
    "hash_salt",
    "num_samples",
    "cancel_after_ps",
    "deadline_ps",
    "category",
)


@dataclass(frozen=True, eq=False)
class Trace:
    """Requests of one trace. Every column has one entry a request; an optional column that the trace lacks is None.

    What a prompt consists of is told in one of two ways, or not at all:

    * `hash_ids`: an id for every block of `hash_block_tokens` prompt tokens, the last, partial block included. An id
      stands for its block *and all blocks before it*. Readers of formats that leave the partial block out must give it
      an id of its own.
    * `prompt_segments` (and `output_segments`): (start_token, num_tokens) pairs, positions in the tokens of
      `samples/corpus.txt`.
    """

    name: str
    arrival_ps: IntArray
    num_prompt_tokens: IntArray
    num_output_tokens: IntArray
    hash_block_tokens: int | None = None
    hash_ids: Ragged | None = None
    prompt_segments: Ragged | None = None
    output_segments: Ragged | None = None
    session_id: IntArray | None = None
    parent: IntArray | None = None  # row of the turn before; -1: none
    # From the end of the parent to this arrival. -1: none; of a row with a parent: unknown, it arrives when the trace
    # says. Without this column turns follow their parents at once.
    think_time_ps: IntArray | None = None
    priority: IntArray | None = None  # lower is more urgent
    tenant: IntArray | None = None
    hash_salt: IntArray | None = None
    num_samples: IntArray | None = None
    cancel_after_ps: IntArray | None = None  # from arrival; -1: never
    deadline_ps: IntArray | None = None  # for the last token, from arrival; -1: none. Nothing schedules by it yet
    category: IntArray | None = None  # kind of request, an index into `category_names`; -1: none
    category_names: tuple[str, ...] = ()
    sha256: str = ""  # of the bytes the trace was read from
    num_dropped: dict[str, int] = field(default_factory=dict)  # rows left out by the reader, by reason
    licence: str = ""
    recipe: dict[str, Any] | None = None  # what a generated trace was made from, its seed included; see traces.generate
    num_unsorted_rows: int = 0  # rows that the reader found below one that arrives later
    key_book: KeyBook | None = None  # where runs that share the trace find the block keys of its segments

    @property
    def num_requests(self) -> int:
        return len(self.arrival_ps)

    @property
    def kind(self) -> IntArray | None:
        """What policies may tell requests apart by, [num_requests]: their category, else their tenant."""
        return self.tenant if self.category is None else self.category

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last arrival."""
        return float(self.arrival_ps[-1] - self.arrival_ps[0]) / 1e12 if self.num_requests else 0.0

    @property
    def has_prefix_information(self) -> bool:
        """Whether the trace says which prompts share a prefix. If not, its prefix hit ratio is undefined, not 0."""
        return self.hash_ids is not None or self.prompt_segments is not None

    def take(self, rows: npt.ArrayLike) -> Trace:
        """The given rows (distinct indices), in the given order; parents are re-indexed.

        A row whose parent is not taken becomes a root: it loses parent and think time and arrives when the trace says.
        """
        kept = np.asarray(rows, dtype=np.int64)
        columns = {name: column[kept] for name, column in self.columns()}
        ragged = {name: rows_of.take(kept) for name, rows_of in self._ragged_columns()}
        taken = replace(self, **columns, **ragged)  # type: ignore[arg-type]  # the names are those of the fields
        if self.parent is None:
            return taken
        new_row = np.full(self.num_requests + 1, -1, dtype=np.int64)  # the last entry answers for parent -1
        new_row[kept] = np.arange(len(kept))
        parent = new_row[self.parent[kept]]
        if taken.think_time_ps is None:
            return replace(taken, parent=parent)
        orphaned = (parent < 0) & (self.parent[kept] >= 0)
        return replace(taken, parent=parent, think_time_ps=np.where(orphaned, -1, taken.think_time_ps))

    def sorted_by_arrival(self) -> Trace:
        """The same requests by arrival time; requests that arrive together keep their order."""
        num_unsorted_rows = self.num_unsorted_rows + int(np.count_nonzero(np.diff(self.arrival_ps) < 0))
        return replace(self.take(np.argsort(self.arrival_ps, kind="stable")), num_unsorted_rows=num_unsorted_rows)

    def validate(self) -> None:
        """Raise InputError, naming row, column, value and what was expected, if the columns contradict the schema."""
        n = self.num_requests
        num_rows = {name: len(column) for name, column in self.columns()}
        num_rows |= {name: ragged.num_rows for name, ragged in self._ragged_columns()}
        for name, num in num_rows.items():
            if num != n:
                raise InputError(f"trace {self.name!r}: column {name} has {num} rows; expected {n}, one a request")
        order_ps = np.diff(self.arrival_ps, prepend=0)
        self._require(order_ps >= 0, "arrival_ps", self.arrival_ps, "arrivals from 0 on, sorted")
        self._require(self.num_prompt_tokens >= 1, "num_prompt_tokens", self.num_prompt_tokens, "at least 1")
        self._require(self.num_output_tokens >= 1, "num_output_tokens", self.num_output_tokens, "at least 1")
        self._validate_hashes()
        self._validate_segments("prompt_segments", self.prompt_segments, self.num_prompt_tokens)
        self._validate_segments("output_segments", self.output_segments, self.num_output_tokens)
        if self.parent is not None:
            linked = (self.parent >= -1) & (self.parent < np.arange(n))
            self._require(linked, "parent", self.parent, "an earlier row, or -1")
        if self.num_samples is not None:
            self._require(self.num_samples >= 1, "num_samples", self.num_samples, "at least 1")
        if self.category is not None:
            named = (self.category >= -1) & (self.category < len(self.category_names))
            expected = f"an index into the {len(self.category_names)} category_names, or -1"
            self._require(named, "category", self.category, expected)

    def _validate_hashes(self) -> None:
        if (self.hash_ids is None) != (self.hash_block_tokens is None):
            raise InputError(f"trace {self.name!r}: hash_ids and hash_block_tokens come together; only one was given")
        if self.hash_ids is None or self.hash_block_tokens is None:
            return
        if self.hash_block_tokens < 1:
            raise InputError(f"trace {self.name!r}: hash_block_tokens is {self.hash_block_tokens}; expected at least 1")
        num_ids = self.hash_ids.row_lengths
        num_blocks = -(-self.num_prompt_tokens // self.hash_block_tokens)
        expected = "ceil(num_prompt_tokens / hash_block_tokens)"
        self._require(num_ids == num_blocks, "hash_ids (their number)", num_ids, expected)
        if bool((self.hash_ids.values < 0).any()):  # negative keys are those of blocks that nobody shares
            raise InputError(
                f"trace {self.name!r}: hash_ids holds {self.hash_ids.values.min()}; expected ids from 0 on"
            )

    def _validate_segments(self, name: str, segments: Ragged | None, num_tokens: IntArray) -> None:
        if segments is None:
            return
        if bool((segments.values[:, 0] < 0).any()) or bool((segments.values[:, 1] < 1).any()):
            raise InputError(f"trace {self.name!r}: {name} holds a segment with a negative start or less than 1 token")
        sums = segments.row_sums(segments.values[:, 1])
        self._require(sums == num_tokens, f"{name} (their tokens)", sums, "as many tokens as the request has")

    def _require(self, good: npt.NDArray[np.bool_], column: str, values: IntArray, expected: str) -> None:
        if not good.all():
            row = int(np.argmin(good))
            raise InputError(f"trace {self.name!r}, row {row}, column {column}: {values[row]}; expected {expected}")

    def columns(self) -> Iterator[tuple[str, IntArray]]:
        """Name and values of every column of one integer a request that the trace has."""
        for name in ("arrival_ps", "num_prompt_tokens", "num_output_tokens", *OPTIONAL_COLUMNS):
            column = getattr(self, name)
            if column is not None:
                yield name, column

    def _ragged_columns(self) -> Iterator[tuple[str, Ragged]]:
        for name in ("hash_ids", "prompt_segments", "output_segments"):
            column = getattr(self, name)
            if column is not None:
                yield name, column
