"""The append-only log of what was decided: digest, first difference, and the readable form.

An event is (step, event, request, block); for events without a block the last column is a count of tokens. Runs of
blocks are stored with one head, so a thousand-block prompt costs one head and a thousand ids.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from core.decision_digest import EACH as EACH
from core.decision_digest import DecisionDigest, Ints
from core.interfaces import Block, BlockKey


class Event(IntEnum):
    """Decisions. A decode step of a running sequence is none: it shows in the blocks it takes and in its finish."""

    ADMIT = 1  # count: hit tokens
    RESUME = 2  # count: hit tokens
    CHUNK = 3  # count: prompt tokens computed in this step
    TOUCH = 4
    ALLOC = 5
    EVICT = 6
    CACHE = 7
    FREE = 8
    PREEMPT = 9  # count: tokens whose KV the victim had
    SWAP_OUT = 10
    SWAP_IN = 11
    COPY = 12
    FINISH = 13  # count: output tokens
    CANCEL = 14
    REJECT = 15
    MOVE = 16  # within the device's pool; block: where its content goes


NO_REQUEST: Final = -1
_RUNS_A_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Decision:
    step: int
    event: Event
    request_id: int
    value: int

    def __str__(self) -> str:
        who = "" if self.request_id == NO_REQUEST else f" request {self.request_id}"
        return f"step {self.step}: {self.event.name.lower()}{who} {self.value}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two logs part, with what surrounds it on both sides."""

    position: int
    left: list[Decision]
    right: list[Decision]

    def __str__(self) -> str:
        sides = (
            f"  {name}:\n" + "\n".join(f"    {d}" for d in rows)
            for name, rows in (("left", self.left), ("right", self.right))
        )
        return f"first difference at decision {self.position}\n" + "\n".join(sides)


class DecisionLog:
    """Kept in flat sequences of integers: a few tens of nanoseconds a block. `keep_keys` also stores block keys."""

    def __init__(self, keep_keys: bool = False) -> None:
        self.step = 0
        # Whoever adds to these himself calls `have_grown` afterwards.
        self.heads: list[int] = []  # step, event, request, number of values, over and over
        self.values = array("q")
        self.owners: list[int] = []  # of the rows whose head says EACH
        self._keys: list[BlockKey | None] | None = [] if keep_keys else None

    def _add_head(self, event: Event, request_id: int, num_values: int) -> None:
        heads = self.heads
        heads.append(self.step)  # one by one: a tuple of them takes as machine code three times as long
        heads.append(event)
        heads.append(request_id)
        heads.append(num_values)

    def count(self, event: Event, request_id: int, value: int) -> None:
        self._add_head(event, request_id, 1)
        self.values.append(value)
        if self._keys is not None:
            self._keys.append(None)

    def blocks(self, event: Event, request_id: int, blocks: Sequence[Block]) -> None:
        if not blocks:
            return
        self._add_head(event, request_id, len(blocks))
        self.values.frombytes(b"".join([block.id_bytes for block in blocks]))
        if self._keys is not None:
            self._keys.extend([block.key for block in blocks])

    def ids(self, event: Event, request_id: int, block_ids: array[int]) -> None:
        """As `blocks`, at least one, by their ids. Keys are not kept."""
        self._add_head(event, request_id, len(block_ids))
        self.values += block_ids

    def ids_of(self, event: Event, request_ids: Sequence[int], block_ids: array[int]) -> None:
        """As `blocks_of`, by their ids. Keys are not kept."""
        self._add_head(event, EACH, len(block_ids))
        self.values += block_ids
        self.owners += request_ids

    def blocks_of(self, event: Event, request_ids: Sequence[int], blocks: Sequence[Block]) -> None:
        """One block of each of these requests."""
        self._add_head(event, EACH, len(blocks))
        self.values.frombytes(b"".join([block.id_bytes for block in blocks]))
        self.owners += request_ids
        if self._keys is not None:
            self._keys.extend([block.key for block in blocks])

    def have_grown(self) -> None:
        """Decisions without keys were added to `heads`, `values` and `owners`, in the form in which they are kept."""
        if self._keys is not None:
            self._keys.extend([None] * (len(self.values) - len(self._keys)))

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> np.ndarray:
        """All decisions as int64 [num_decisions, 4]: step, event, request, block."""
        return np.concatenate([np.zeros((0, 4), dtype=np.int64), *self._row_chunks()])

    def _row_chunks(self) -> Iterator[np.ndarray]:
        """`rows()` piece by piece: expanded they take four times the room of the log."""
        value = owner = 0
        for first in range(0, len(self.heads), 4 * _RUNS_A_CHUNK):
            heads = _integers(self.heads[first : first + 4 * _RUNS_A_CHUNK]).reshape(-1, 4)
            rows = np.repeat(heads, heads[:, 3], axis=0)
            rows[:, 3] = self.values[value : value + len(rows)]
            value += len(rows)
            is_each = rows[:, 2] == EACH
            num_owners = int(is_each.sum())
            rows[is_each, 2] = _integers(self.owners[owner : owner + num_owners])
            owner += num_owners
            yield rows

    def keys(self) -> list[BlockKey | None]:
        """The key of each row's block, aligned with `rows()`; needs `keep_keys`."""
        if self._keys is None:
            raise ValueError("this log was made without keep_keys")
        return self._keys

    def digest(self) -> str:
        """Equal digests mean equal decisions, block ids included."""
        digest = DecisionDigest()
        digest.add_values(self.values)
        digest.add_runs(_integers(self.heads).reshape(-1, 4), _integers(self.owners))
        return digest.hexdigest()


def packed(values: list[int]) -> bytes:
    """As int64: twice as fast as an array made of the list."""
    return struct.pack(f"{len(values)}q", *values)


def _integers(values: list[int]) -> Ints:
    return np.frombuffer(packed(values), dtype=np.int64)


class NoLog(DecisionLog):
    """`decisions=off`: same calls, nothing kept."""

    def count(self, event: Event, request_id: int, value: int) -> None:
        pass

    def blocks(self, event: Event, request_id: int, blocks: Sequence[Block]) -> None:
        pass

    def blocks_of(self, event: Event, request_ids: Sequence[int], blocks: Sequence[Block]) -> None:
        pass

    def ids(self, event: Event, request_id: int, block_ids: array[int]) -> None:
        pass

    def ids_of(self, event: Event, request_ids: Sequence[int], block_ids: array[int]) -> None:
        pass

    def have_grown(self) -> None:
        self.heads.clear()
        del self.values[:]
        self.owners.clear()


def first_difference(left: np.ndarray, right: np.ndarray, context: int = 3) -> Difference | None:
    """The first row in which two logs differ, with up to `context` rows before and after it; None if they are equal."""
    shared = min(len(left), len(right))
    unequal = np.flatnonzero((left[:shared] != right[:shared]).any(axis=1))
    if len(unequal) == 0 and len(left) == len(right):
        return None
    position = int(unequal[0]) if len(unequal) else shared
    window = slice(max(0, position - context), position + context + 1)
    return Difference(position, _decisions(left[window]), _decisions(right[window]))


def _decisions(rows: np.ndarray) -> list[Decision]:
    return [Decision(int(s), Event(int(e)), int(r), int(v)) for s, e, r, v in rows]
