"""Which earlier request each one continues, inferred from the hash ids alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traces.ragged import IntArray, Ragged
from traces.stack_distance import previous_references


class PrefixForest(NamedTuple):
    """For every request what of it was there before. Counts are blocks."""

    num_shared: IntArray  # leading blocks that an earlier request has as well
    holder: IntArray  # the latest earlier request with the last of these; -1: nothing is shared
    num_common: int  # leading blocks that nearly all requests have

    @property
    def repeats(self) -> IntArray:
        """The requests that share more with an earlier one than nearly all do."""
        return np.flatnonzero(self.num_shared > self.num_common)


COMMON_RATIO = 0.95


def prefix_forest(hash_ids: Ragged) -> PrefixForest:
    """Ids are taken to be chained: an id stands for its block and all before it. O(ids log ids)."""
    num_ids = len(hash_ids.values)
    row_of = np.repeat(np.arange(hash_ids.num_rows), hash_ids.row_lengths)
    previous = previous_references(hash_ids.values)
    was_there = previous >= 0
    # The leading run: once a block is new, so are those after it; counted up to the first new one all the same.
    place = np.arange(num_ids) - hash_ids.offsets[:-1][row_of]
    num_before = hash_ids.row_sums(was_there.astype(np.int64))
    first_new = np.full(hash_ids.num_rows, np.iinfo(np.int64).max)
    np.minimum.at(first_new, row_of[~was_there], place[~was_there])
    num_shared = np.minimum(num_before, first_new)
    last_shared = hash_ids.offsets[:-1] + num_shared - 1
    holder = np.where(num_shared > 0, row_of[previous[last_shared]], -1)
    return PrefixForest(num_shared, holder, _num_common(hash_ids))


def _num_common(hash_ids: Ragged) -> int:
    """Leading blocks whose id nearly all requests have in that place."""
    num_common, num_rows = 0, hash_ids.num_rows
    while num_rows > 1:
        has_block = np.flatnonzero(hash_ids.row_lengths > num_common)
        _, times = np.unique(hash_ids.values[hash_ids.offsets[has_block] + num_common], return_counts=True)
        if times.max(initial=0) < COMMON_RATIO * num_rows:
            break
        num_common += 1
    return num_common
