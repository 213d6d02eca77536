"""A decision log that keeps the digest and lets the decisions go: what a long run can afford."""

from __future__ import annotations

import numpy as np

from core.decision_digest import DecisionDigest
from core.decision_log import DecisionLog, Event

_DECISIONS_AT_ONCE = 1 << 13


class DigestLog(DecisionLog):
    """`decisions=digest`: the same digest as a log that keeps everything, in a few megabytes however long the run."""

    def __init__(self) -> None:
        super().__init__()
        self._digest = DecisionDigest()
        self._num_digested = 0

    def count(self, event: Event, request_id: int, value: int) -> None:
        self.heads += (self.step, event, request_id, 1)
        self.values.append(value)
        if len(self.values) > _DECISIONS_AT_ONCE:
            self._take_in()

    def have_grown(self) -> None:
        if len(self.values) > _DECISIONS_AT_ONCE:
            self._take_in()

    def _take_in(self) -> None:
        self._num_digested += len(self.values)
        self._digest.update(*self._columns())
        self.heads.clear()
        del self.values[:]
        self.owners.clear()

    def __len__(self) -> int:
        return self._num_digested + len(self.values)

    def rows(self) -> np.ndarray:
        """Raises ValueError: they are gone."""
        raise ValueError("this log kept the digest of its decisions only")

    def digest(self) -> str:
        self._take_in()
        return self._digest.hexdigest()
