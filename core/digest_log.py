"""A decision log that keeps the digest and lets the decisions go: what a long run can afford."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from core.decision_digest import DecisionDigest
from core.decision_log import DecisionLog, Event, packed

_DECISIONS_AT_ONCE: Final = 1 << 13
_MANY_IDS: Final = 128
_HEADS_AT_ONCE: Final = 1 << 12  # 32 bytes each: the calls of numpy for them cost as much as a thousand


class DigestLog(DecisionLog):
    """`decisions=digest`: the same digest as a log that keeps everything, in less than a megabyte however long the run.

    Values and heads are digested when there are more than so many.
    """

    def __init__(
        self, num_decisions_at_once: int = _DECISIONS_AT_ONCE, num_heads_at_once: int = _HEADS_AT_ONCE
    ) -> None:
        super().__init__()
        self._digest = DecisionDigest()
        self._num_digested = 0
        self._num_decisions_at_once = num_decisions_at_once
        self._num_integers_at_once = 4 * num_heads_at_once
        # Of decisions whose values are digested.
        self._packed_heads = array("q")
        self._packed_owners = array("q")

    def count(self, event: Event, request_id: int, value: int) -> None:
        self._add_head(event, request_id, 1)
        self.values.append(value)
        if len(self.values) > self._num_decisions_at_once:
            self._take_in()

    def ids(self, event: Event, request_id: int, block_ids: array[int]) -> None:
        """Many are digested where they lie: a buffer that grows is copied again and again."""
        if len(block_ids) < _MANY_IDS:
            super().ids(event, request_id, block_ids)
            return
        self._take_in()
        self._add_head(event, request_id, len(block_ids))
        self._digest.add_values(block_ids)
        self._num_digested += len(block_ids)

    def have_grown(self) -> None:
        if len(self.values) > self._num_decisions_at_once:
            self._take_in()

    def _take_in(self) -> None:
        self._num_digested += len(self.values)
        self._digest.add_values(self.values)
        del self.values[:]
        self._packed_heads.frombytes(packed(self.heads))
        self._packed_owners.frombytes(packed(self.owners))
        self.heads.clear()
        self.owners.clear()
        if len(self._packed_heads) > self._num_integers_at_once:
            self._take_in_heads()

    def _take_in_heads(self) -> None:
        heads = np.array(self._packed_heads, dtype=np.int64).reshape(-1, 4)
        self._digest.add_runs(heads, np.array(self._packed_owners, dtype=np.int64))
        del self._packed_heads[:], self._packed_owners[:]

    def __len__(self) -> int:
        return self._num_digested + len(self.values)

    def rows(self) -> np.ndarray:
        """Raises ValueError: they are gone."""
        raise ValueError("this log kept the digest of its decisions only")

    def digest(self) -> str:
        self._take_in()
        self._take_in_heads()
        return self._digest.hexdigest()
