"""One eviction policy replays a trace's block references in a pool of its own: hits and misses, no time, no batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.errors import InputError
from core.interfaces import EvictionPolicy, PolicyEnv
from kvtwin.block_caches import BlockwiseCache, MakePolicy, RequestwiseCache
from traces.block_references import BlockReferences


class Mode(Enum):
    """What counts as a hit, and what may be evicted."""

    PLAIN = "plain"  # every block on its own, one access after the other
    PREFIX = "prefix"  # leading resident blocks hit; the whole request is pinned while its missing blocks come in
    LEAF = "leaf"  # the same, and only blocks without resident children are evicted


class Touch(Enum):
    """In which order a request's blocks become most recent."""

    TAIL = "tail"  # last to first, when the request ends: vLLM's release
    HEAD = "head"  # first to last, one access after the other as in plain mode; only what counts as a hit differs


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What became of a trace's references at one capacity."""

    hit_blocks: int
    miss_blocks: int
    hit_tokens: int


class _Clock:
    """The time that the policy is told: the arrival of the request at hand."""

    now_ps = 0


class _Request(NamedTuple):
    arrival_ps: int
    blocks: list[int]


def replay_blocks(
    references: BlockReferences,
    make: MakePolicy,
    capacity_blocks: int,
    mode: Mode,
    touch: Touch = Touch.TAIL,
    seed: int = 0,
) -> ReplayResult:
    """Requests one at a time, outputs ignored, against a fresh policy: the class that runs in simulator and engine.

    A request that is longer than the capacity is pinned whole: of its missing blocks those that fit are inserted, the
    first ones first, and the others are not. (Where blocks are accessed one by one, nothing is pinned.)
    O(log n) a reference under any policy that keeps to its interface. Raises InputError where prefixes are asked for
    and the trace's ids are no prefix hashes.
    """
    if mode is Mode.LEAF:
        raise InputError("mode leaf: eviction from the leaves only is not built yet")
    clock = _Clock()
    policy = make(PolicyEnv(lambda: clock.now_ps, capacity_blocks, references.block_tokens, seed))
    if mode is Mode.PLAIN:
        is_hit = _replay_one_by_one(references, BlockwiseCache(policy, capacity_blocks), clock)
    else:
        references.parents()
        is_hit = _is_leading(references, list(_replay_prefixes(references, policy, capacity_blocks, touch, clock)))
    num_hits = int(np.count_nonzero(is_hit))
    return ReplayResult(num_hits, references.num_references - num_hits, int(references.num_tokens[is_hit].sum()))


def _replay_one_by_one(references: BlockReferences, cache: BlockwiseCache, clock: _Clock) -> npt.NDArray[np.bool_]:
    is_hit = []
    for request in _requests(references):
        clock.now_ps = request.arrival_ps
        is_hit += [cache.access(block) for block in request.blocks]
    return np.array(is_hit, dtype=bool)


def _replay_prefixes(
    references: BlockReferences, policy: EvictionPolicy, capacity_blocks: int, touch: Touch, clock: _Clock
) -> Iterator[int]:
    """How many leading blocks of each request are resident when it looks them up."""
    if touch is Touch.TAIL:
        together = RequestwiseCache(policy, capacity_blocks)
        for request in _requests(references):
            clock.now_ps = request.arrival_ps
            yield together.num_leading(request.blocks)
            together.access(request.blocks)
    else:
        apart = BlockwiseCache(policy, capacity_blocks)
        for request in _requests(references):
            clock.now_ps = request.arrival_ps
            yield apart.num_leading(request.blocks)
            for block in request.blocks:
                apart.access(block)


def _requests(references: BlockReferences) -> Iterator[_Request]:
    return map(_Request, references.arrival_ps.tolist(), references.rows())


def _is_leading(references: BlockReferences, num_leading: list[int]) -> npt.NDArray[np.bool_]:
    """Whether each reference is among the first so many of its request."""
    num_blocks = references.num_blocks
    place = np.arange(references.num_references) - np.repeat(references.offsets[:-1], num_blocks)
    return np.asarray(place < np.repeat(num_leading, num_blocks))
