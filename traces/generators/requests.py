"""Requests as the parts of a recipe hand them on, before they become a trace."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from traces.generators.distributions import FloatArray
from traces.ragged import IntArray

NEVER = -1


@dataclass(frozen=True, eq=False)
class Requests:
    """One entry a request. `origin` is an earlier request that begins with the same `num_shared_tokens`; -1: none."""

    arrival_s: FloatArray
    num_prompt_tokens: IntArray
    num_output_tokens: IntArray
    origin: IntArray
    num_shared_tokens: IntArray
    group: IntArray  # requests of one session, or client, belong to one tenant
    session_id: IntArray | None = None
    parent: IntArray | None = None
    think_time_s: FloatArray | None = None  # below 0: none

    def by_arrival(self) -> Requests:
        """Sorted by arrival, requests that come together in the order they stand in; indices follow."""
        order = np.argsort(self.arrival_s, kind="stable")
        place = np.full(len(order) + 1, NEVER)  # the last entry answers for -1
        place[order] = np.arange(len(order))
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        moved = {name: column[order] for name, column in columns.items() if column is not None}
        links = {name: place[moved[name]] for name in ("origin", "parent") if name in moved}
        return replace(self, **moved | links)
