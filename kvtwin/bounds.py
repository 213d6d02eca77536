"""What no eviction policy can beat: offline bounds, computed with the whole trace known."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from traces.ragged import IntArray
from traces.stack_distance import previous_references

FloatArray = npt.NDArray[np.float64]


def min_hit_blocks(blocks: IntArray, capacity_blocks: int, may_bypass: bool) -> int:
    """Hits of Belady's MIN (1966) on a stream of unit blocks: the resident one whose next use is farthest goes.

    No policy that keeps every block it was asked for hits more. `may_bypass`: nor does one that may leave blocks out,
    for here the block asked for can itself be the one whose next use is farthest. O(n log n).
    """
    next_use: dict[int, int] = {}  # of the resident blocks
    farthest: list[tuple[int, int]] = []  # (-next use, block); entries of uses that have passed are stale
    num_hits = 0
    for block, use in zip(blocks.tolist(), next_references(blocks).tolist(), strict=True):
        if block in next_use:
            num_hits += 1
        elif len(next_use) == capacity_blocks:
            while next_use.get(farthest[0][1]) != -farthest[0][0]:
                heapq.heappop(farthest)
            if may_bypass and use >= -farthest[0][0]:
                continue
            del next_use[heapq.heappop(farthest)[1]]
        next_use[block] = use
        heapq.heappush(farthest, (-use, block))
    return num_hits


def next_references(blocks: IntArray) -> IntArray:
    """The index of the next reference to the same block, `[num_references]`; num_references: none."""
    size = len(blocks)
    return size - 1 - previous_references(blocks[::-1])[::-1]


def most_hit_value(blocks: IntArray, values: FloatArray, capacities_blocks: Sequence[int]) -> list[float]:
    """No policy's hits are worth more than this, at each of the capacities. `values`: of each reference, if it hits.

    PFOO-U (Berger, Beckmann, Harchol-Balter: Practical Bounds on Optimal Caching with Variable Object Sizes, 2018) for
    unit blocks: a hit keeps its block from one reference to the next, and so takes as much memory x time as lies
    between. Only the total is limited, capacity x references, not the memory at each moment: that is a relaxation, so
    its optimum is a bound. It takes the hits of the highest value per length first, the last one in part. O(n log n).

    Also where requests are pinned whole: what is kept over a request for later is in memory together at its end.
    """
    following = next_references(blocks)
    kept = np.flatnonzero(following < len(blocks))
    lengths, worth = following[kept] - kept, values[following[kept]]
    order = np.argsort(-worth / lengths, kind="stable")
    used = np.concatenate(([0], np.cumsum(lengths[order])))
    gained = np.concatenate(([0.0], np.cumsum(worth[order])))
    room = np.array(capacities_blocks, dtype=np.float64) * len(blocks)
    bound: list[float] = np.interp(room, used, gained).tolist()
    return bound
