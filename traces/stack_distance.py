"""LRU stack distances (Mattson et al. 1970): the capacities at which each reference of a stream hits, all at once."""

from __future__ import annotations

import numpy as np

from traces.ragged import IntArray, Ragged

COLD = -1  # the distance of a first reference, which hits at no capacity


def stack_distances(ids: IntArray) -> IntArray:
    """The least LRU capacity at which each reference of a stream hits, `[num_references]`; COLD for a first one.

    That is 1 + the number of different ids referenced since the same id was. Exact, O(n log n) time, O(n) memory.
    """
    times = np.arange(len(ids))
    previous = previous_references(ids)
    warm = previous >= 0
    distances = np.full(len(ids), COLD, dtype=np.int64)
    # Ids between the two references, less those referenced again in between: they were counted twice.
    distances[warm] = (times - previous)[warm] - _num_earlier_and_greater(previous[warm])
    return distances


def prefix_stack_distances(ids: Ragged) -> IntArray:
    """The same for requests that look up all their blocks at once, then touch them tail first, as engines do.

    `ids` are chained: an id stands for its block and all before it, so it always follows the same id. A request then
    hits a prefix: the distances of a row never fall, and a block hits at every capacity of at least its distance
    (and of at least the blocks of the longest row, below which a request does not fit). `[num_ids]`, as in `ids`.
    """
    first, ends = ids.offsets[:-1], ids.offsets[1:]
    row_of = np.repeat(np.arange(ids.num_rows), ids.row_lengths)
    positions = np.arange(len(ids.values))
    mirrored = (first + ends - 1)[row_of] - positions  # where the entry stands once every row is turned round
    distances = stack_distances(ids.values[mirrored])[mirrored]
    # The row's own deeper blocks were touched after the look-up. None of them was touched since the block itself was:
    # a prompt that holds them holds the block as well, and touches it later.
    num_deeper = mirrored - first[row_of]
    return np.where(distances == COLD, COLD, distances - num_deeper)


def previous_references(ids: IntArray) -> IntArray:
    """The index of the reference before to the same id, `[num_references]`; -1: none."""
    order = np.argsort(ids, kind="stable")
    same = ids[order][1:] == ids[order][:-1]
    previous = np.full(len(ids), -1, dtype=np.int64)
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _num_earlier_and_greater(values: IntArray) -> IntArray:
    """For every one of distinct values the number of earlier, greater ones, `[num_values]`.

    Bit by bit from the highest, values that agree so far lie together, in their order in time. Of those, the ones that
    come earlier and have the bit where this one has not are greater.
    """
    size = len(values)
    counts = np.zeros(size, dtype=np.int64)
    entries = np.arange(size)
    ranks = np.empty(size, dtype=np.int64)
    ranks[np.argsort(values)] = np.arange(size)
    for bit in range(max(size - 1, 0).bit_length() - 1, -1, -1):
        group_start = ranks >> (bit + 1) << (bit + 1)  # ranks are 0 … size - 1, so a group starts at its least rank
        has_bit = (ranks >> bit) & 1
        ones_before = np.concatenate(([0], np.cumsum(has_bit)))
        ones_in_group = ones_before[:-1] - ones_before[group_start]
        counts[entries] += np.where(has_bit, 0, ones_in_group)
        zeros_in_group = np.arange(size) - group_start - ones_in_group
        place = group_start + np.where(has_bit, (1 << bit) + ones_in_group, zeros_in_group)
        moved_entries, moved_ranks = np.empty_like(entries), np.empty_like(ranks)
        moved_entries[place], moved_ranks[place] = entries, ranks
        entries, ranks = moved_entries, moved_ranks
    return counts
