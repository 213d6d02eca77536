"""A decision log that keeps the digest and lets the decisions go: what a long run can afford."""

from __future__ import annotations

from array import array

import numpy as np

from core.decision_digest import DecisionDigest
from core.decision_log import DecisionLog, Event

_DECISIONS_AT_ONCE = 1 << 18


class DigestLog(DecisionLog):
    """`decisions=digest`: the same digest as a log that keeps everything, in a few megabytes however long the run."""

    def __init__(self) -> None:
        super().__init__()
        self._digest = DecisionDigest()
        self._num_digested = 0

    def count(self, event: Event, request_id: int, value: int) -> None:
        self._heads += (self.step, event, request_id, 1)
        self._values.append(value)
        if len(self._values) > _DECISIONS_AT_ONCE:
            self._take_in()

    def _take_in(self) -> None:
        self._num_digested += len(self._values)
        self._digest.update(*self._columns())
        self._heads.clear()
        self._values = array("q")
        self._owners.clear()

    def __len__(self) -> int:
        return self._num_digested + len(self._values)

    def rows(self) -> np.ndarray:
        """Raises ValueError: they are gone."""
        raise ValueError("this log kept the digest of its decisions only")

    def digest(self) -> str:
        self._take_in()
        return self._digest.hexdigest()
