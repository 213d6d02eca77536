"""Which resident blocks a look-up can reach: those whose every block before them is resident, too."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from traces.block_references import BlockReferences


class Reachability:
    """The tree of a trace's blocks, by depth. Raises InputError where the trace's ids are no prefix hashes."""

    def __init__(self, references: BlockReferences) -> None:
        self._parents = references.parents()
        depths = np.zeros(references.num_unique, dtype=np.int64)
        starts = np.repeat(references.offsets[:-1], references.num_blocks)
        depths[references.blocks] = np.arange(references.num_references) - starts
        by_depth = np.argsort(depths, kind="stable")
        self._levels = np.split(by_depth, np.cumsum(np.bincount(depths))[:-1])[1:]

    def num_unreachable(self, resident: Iterable[int]) -> int:
        """How many of the resident blocks are orphans or continue one. O(all blocks of the trace)."""
        is_resident = np.zeros(len(self._parents), dtype=bool)
        is_resident[np.fromiter(resident, dtype=np.int64)] = True
        is_reachable = is_resident.copy()
        for level in self._levels:
            is_reachable[level] &= is_reachable[self._parents[level]]
        return int(np.count_nonzero(is_resident) - np.count_nonzero(is_reachable))
