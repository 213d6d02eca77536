"""One eviction policy replays a trace's block references in a pool of its own: hits and misses, no time, no batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from core.interfaces import EvictionPolicy, PolicyEnv
from core.run_pool import keeps_order_of_release
from kvtwin.block_caches import BlockwiseCache, RequestwiseCache, RunwiseCache
from kvtwin.reachability import Reachability
from traces.block_references import BlockReferences, ReferencesToCome

NUM_LOOKS = 64
MakePolicy = Callable[[PolicyEnv], EvictionPolicy]


class Mode(Enum):
    """What counts as a hit, and what may be evicted."""

    PLAIN = "plain"  # every block on its own, one access after the other
    PREFIX = "prefix"  # leading resident blocks hit; the whole request is pinned while its missing blocks come in
    LEAF = "leaf"  # the same, and only blocks without resident children are evicted


class Touch(Enum):
    """In which order a request's blocks become most recent, in mode prefix."""

    TAIL = "tail"  # last to first, when the request ends: vLLM's release
    HEAD = "head"  # first to last, one access after the other as in plain mode; only what counts as a hit differs


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What became of a trace's references at one capacity.

    `orphan_block_ratio`: share of the capacity that held blocks whose parent was gone, mean over the requests.
    `unreachable_block_ratio`: the same for those and all that continue them, mean over up to 64 evenly spread requests.
    Both are None where blocks are accessed one by one. `hit_flops` is what the hits save, where the references know it.
    """

    hit_blocks: int
    miss_blocks: int
    hit_tokens: int
    orphan_block_ratio: float | None = None
    unreachable_block_ratio: float | None = None
    hit_flops: float | None = None


class _Request(NamedTuple):
    arrival_ps: int
    category: int
    blocks: list[int]


class _World:
    """What a policy is told of the world, request after request: the time is the arrival of the one at hand."""

    def __init__(self, references: BlockReferences, capacity_blocks: int, seed: int) -> None:
        self._references = references
        self._now_ps = 0
        self.to_come = ReferencesToCome(references)
        self.env = PolicyEnv(lambda: self._now_ps, capacity_blocks, references.block_tokens, seed, future=self.to_come)

    def requests(self) -> Iterator[_Request]:
        columns = (self._references.arrival_ps, self._references.category)
        for request in map(_Request, *(column.tolist() for column in columns), self._references.rows()):
            self._now_ps = request.arrival_ps
            yield request


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
    world = _World(references, capacity_blocks, seed)
    policy = make(world.env)
    if mode is Mode.PLAIN:
        return _counted(references, _replay_plain(world, BlockwiseCache(policy, capacity_blocks)))
    references.parents()
    if touch is Touch.HEAD and mode is Mode.PREFIX:
        leading = _replay_one_by_one(world, BlockwiseCache(policy, capacity_blocks))
        return _counted(references, _is_leading(references, leading))
    if mode is Mode.PREFIX and keeps_order_of_release(policy):
        runs = RunwiseCache(capacity_blocks)
        leading = [runs.access(request.blocks) for request in world.requests()]
        return _counted(references, _is_leading(references, leading), 0.0, 0.0)
    cache = RequestwiseCache(policy, capacity_blocks, leaf_first=mode is Mode.LEAF)
    if mode is Mode.LEAF or policy.is_prefix_closed:
        return _counted(references, _is_leading(references, _replay_pinned(world, cache, lambda: None)), 0.0, 0.0)
    stranded = _Stranded(references, cache)
    leading = _replay_pinned(world, cache, stranded.look)
    return _counted(references, _is_leading(references, leading), *stranded.ratios(capacity_blocks))


def _replay_plain(world: _World, cache: BlockwiseCache) -> npt.NDArray[np.bool_]:
    """Which references hit."""
    to_come, is_hit = world.to_come, []
    for request in world.requests():
        for position, block in enumerate(request.blocks):
            to_come.num_past += 1
            is_hit.append(cache.access(block, position, request.category))
    return np.array(is_hit, dtype=bool)


def _replay_one_by_one(world: _World, cache: BlockwiseCache) -> list[int]:
    """How many leading blocks of each request are resident when it looks them up; the rest is as in plain mode."""
    to_come, num_leading = world.to_come, []
    for request in world.requests():
        num_leading.append(cache.num_leading(request.blocks))
        for position, block in enumerate(request.blocks):
            to_come.num_past += 1
            cache.access(block, position, request.category)
    return num_leading


def _replay_pinned(world: _World, cache: RequestwiseCache, look: Callable[[], None]) -> list[int]:
    """How many leading blocks of each request are resident; `look` is called after each."""
    num_leading = []
    for request in world.requests():
        num_leading.append(cache.num_leading(request.blocks))
        world.to_come.num_past += len(request.blocks)
        cache.access(request.blocks, request.category)
        look()
    return num_leading


class _Stranded:
    """Counts the blocks of a cache that no look-up reaches: orphans all the time, what hangs on them now and then."""

    def __init__(self, references: BlockReferences, cache: RequestwiseCache) -> None:
        self._cache = cache
        self._reachability = Reachability(references)
        self._every = -(-len(references.num_blocks) // NUM_LOOKS)
        self._num_requests = 0
        self._num_orphans = 0
        self._num_unreachable: list[int] = []

    def look(self) -> None:
        self._num_requests += 1
        self._num_orphans += self._cache.num_orphans
        if self._num_requests % self._every == 0:
            self._num_unreachable.append(self._reachability.num_unreachable(self._cache.resident()))

    def ratios(self, capacity_blocks: int) -> tuple[float, float]:
        """Mean share of the capacity: of orphans, and of all unreachable blocks."""
        num_unreachable = float(np.mean(self._num_unreachable))
        return self._num_orphans / self._num_requests / capacity_blocks, num_unreachable / capacity_blocks


def _is_leading(references: BlockReferences, num_leading: list[int]) -> npt.NDArray[np.bool_]:
    """Whether each reference is among the first so many of its request."""
    num_blocks = references.num_blocks
    place = np.arange(references.num_references) - np.repeat(references.offsets[:-1], num_blocks)
    return np.asarray(place < np.repeat(num_leading, num_blocks))


def _counted(
    references: BlockReferences,
    is_hit: npt.NDArray[np.bool_],
    orphan_block_ratio: float | None = None,
    unreachable_block_ratio: float | None = None,
) -> ReplayResult:
    num_hits = int(np.count_nonzero(is_hit))
    num_misses = references.num_references - num_hits
    hit_tokens = int(references.num_tokens[is_hit].sum())
    hit_flops = None if references.flops is None else float(references.flops[is_hit].sum())
    return ReplayResult(num_hits, num_misses, hit_tokens, orphan_block_ratio, unreachable_block_ratio, hit_flops)
