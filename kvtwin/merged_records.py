"""The records of a run's replicas as one: pooled columns, each with the number of its replica, and sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from core.columns import request_arrays
from core.request_log import RequestLog
from kvtwin.lazy_arrays import Arrays
from kvtwin.replica_records import ReplicaRecords

NOWHERE = -1  # the replica of a request that never arrived


class RequestTable:
    """The rows of the whole trace, filled in replica by replica: a part can be let go once it is in."""

    def __init__(self, num_rows: int) -> None:
        self.arrays = request_arrays(RequestLog(), num_rows)
        self.arrays["replica"] = np.full(num_rows, NOWHERE, dtype=np.int32)

    def add(self, replica: int, part: Arrays) -> None:
        rows = part["request_id"]
        for name, column in part.items():
            if name not in ("request_id", "outcome_names"):
                self.arrays[name][rows] = column
        self.arrays["replica"][rows] = replica


def concatenated(parts: Sequence[Arrays]) -> Arrays:
    """The columns of several replicas, one replica after another, and `replica`."""
    names = list(parts[0])
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    lengths = [len(part[names[0]]) for part in parts]
    columns["replica"] = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)
    return columns


def total(counts: Iterable[int | None]) -> int | None:
    """Their sum; None where one is None: all replicas are alike."""
    found = list(counts)
    return None if any(count is None for count in found) else sum(count for count in found if count is not None)


def combined_digest(replicas: Sequence[ReplicaRecords]) -> str | None:
    """Equal digests mean equal decisions of every replica. Of one replica it is its own."""
    digests = [replica.digest for replica in replicas]
    if len(digests) == 1 or not any(digests):
        return digests[0]
    return hashlib.sha256("\n".join(digest or "" for digest in digests).encode()).hexdigest()
