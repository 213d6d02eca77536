"""A decision log that keeps the digest and lets the decisions go: what a long run can afford."""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np

from core.decision_digest import DecisionDigest
from core.decision_log import DecisionLog, Event, packed

_INTEGERS_AT_ONCE: Final = 1 << 9
_MANY_IDS: Final = 32
_HEADS_AT_ONCE: Final = 1 << 12  # 32 bytes each: the calls of numpy for them cost as much as a thousand


class DigestLog(DecisionLog):
    """`decisions=digest`: the same digest as a log that keeps everything, in less than a megabyte however long the run.

    Values are digested when there are more than so many, or where they lie when they come so many at a time: an array
    that grows is copied again and again. Heads are packed, and digested many at a time.
    """

    def __init__(self, num_integers_at_once: int = _INTEGERS_AT_ONCE, num_heads_at_once: int = _HEADS_AT_ONCE) -> None:
        super().__init__()
        self._digest = DecisionDigest()
        self._num_digested = 0
        self._num_integers_at_once = num_integers_at_once
        self._num_heads_at_once = num_heads_at_once
        self._packed_heads: list[bytes] = []
        self._packed_owners: list[bytes] = []
        self._num_packed_heads = 0

    def count(self, event: Event, request_id: int, value: int) -> None:
        self._add_head(event, request_id, 1)
        self.values.append(value)
        self.have_grown()

    def ids(self, event: Event, request_id: int, block_ids: array[int]) -> None:
        if len(block_ids) < _MANY_IDS:
            super().ids(event, request_id, block_ids)
            return
        self._add_head(event, request_id, len(block_ids))
        self._digest_values()
        self._digest.add_values(block_ids)
        self._num_digested += len(block_ids)

    def have_grown(self) -> None:
        if len(self.values) > self._num_integers_at_once:
            self._digest_values()
        if len(self.heads) > self._num_integers_at_once:
            self._pack_heads()

    def _digest_values(self) -> None:
        if self.values:
            self._num_digested += len(self.values)
            self._digest.add_values(self.values)
            del self.values[:]

    def _pack_heads(self) -> None:
        self._num_packed_heads += len(self.heads) // 4
        self._packed_heads.append(packed(self.heads))
        self._packed_owners.append(packed(self.owners))
        self.heads.clear()
        self.owners.clear()
        if self._num_packed_heads > self._num_heads_at_once:
            self._digest_heads()

    def _digest_heads(self) -> None:
        heads = np.frombuffer(b"".join(self._packed_heads), dtype=np.int64).reshape(-1, 4)
        self._digest.add_runs(heads, np.frombuffer(b"".join(self._packed_owners), dtype=np.int64))
        self._packed_heads.clear()
        self._packed_owners.clear()
        self._num_packed_heads = 0

    def __len__(self) -> int:
        return self._num_digested + len(self.values)

    def rows(self) -> np.ndarray:
        """Raises ValueError: they are gone."""
        raise ValueError("this log kept the digest of its decisions only")

    def digest(self) -> str:
        self._digest_values()
        self._pack_heads()
        self._digest_heads()
        return self._digest.hexdigest()
