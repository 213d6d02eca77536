"""Block ids as the schema wants them: an id stands for its block and all blocks before it."""

from __future__ import annotations

import numpy as np

from traces.schema import IntArray, Ragged


def chained(hash_ids: Ragged) -> Ragged:
    """The same rows, sharing the same prefixes, with ids that follow one and the same id wherever they stand.

    Ids that do so already (they form a tree) come back untouched. Others name contents, wherever these stand; they are
    numbered anew, depth by depth: O(n log n) for n ids. No row may be empty.
    """
    ids = _small_ids(hash_ids.values)
    before = np.concatenate(([-1], ids[:-1]))  # in its row; -1: nothing
    before[hash_ids.offsets[:-1]] = -1
    before_first = np.empty(int(ids.max(initial=-1)) + 1, dtype=np.int64)
    before_first[ids[::-1]] = before[::-1]  # the first place of an id is written last
    if bool((before == before_first[ids]).all()):
        return hash_ids
    return Ragged(_numbered_by_prefix(hash_ids, ids), hash_ids.offsets)


def _small_ids(ids: IntArray) -> IntArray:
    """Numbers in the order of the ids, from 0 on and below four times as many as there are: tables are made of them."""
    if len(ids) and int(ids.min()) >= 0 and int(ids.max()) < 4 * len(ids):
        return ids  # as files number blocks that come up one after the other
    return np.unique(ids, return_inverse=True)[1]


def _numbered_by_prefix(hash_ids: Ragged, ids: IntArray) -> IntArray:
    numbers = np.empty(len(ids), dtype=np.int64)
    lengths = hash_ids.row_lengths
    num_distinct = int(ids.max()) + 1
    num_prefixes = 0
    for depth in range(int(lengths.max())):
        places = hash_ids.offsets[:-1][lengths > depth] + depth
        before = numbers[places - 1] if depth else np.full(len(places), -1)
        prefixes, index = np.unique((before + 1) * num_distinct + ids[places], return_inverse=True)
        numbers[places] = num_prefixes + index
        num_prefixes += len(prefixes)
    return numbers
