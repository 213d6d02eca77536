"""Caches that are driven by block references alone, around the eviction policy of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from core.block_pool import BlockPool
from core.content import HashKeys
from core.decision_log import NoLog
from core.interfaces import Block, EvictionPolicy
from core.leaf_first import LeafFirst
from core.linked_index import LinkedIndex
from core.prefix_index import HashIndex
from core.run_pool import RunPool


class BlockwiseCache:
    """One access after the other, nothing pinned: the pool's calls of a policy in the pool's order, and no more.

    The pool itself would do the same at a quarter of the speed, and a test holds the two against each other.
    """

    def __init__(self, policy: EvictionPolicy, capacity_blocks: int) -> None:
        self._policy = policy
        self._capacity_blocks = capacity_blocks
        self._resident: dict[int, Block] = {}
        self._tells_hits = type(policy).on_hit is not EvictionPolicy.on_hit
        self._tells_evictions = type(policy).on_evict is not EvictionPolicy.on_evict

    def num_leading(self, keys: Sequence[int]) -> int:
        """How many of the request's first blocks are resident."""
        resident = self._resident
        return next((place for place, key in enumerate(keys) if key not in resident), len(keys))

    def access(self, key: int, position: int, category: int) -> bool:
        """A hit, or the block comes in, where need be in place of another. Returns whether it was a hit."""
        policy, block = self._policy, self._resident.get(key)
        is_hit = block is not None
        if block is None:
            block = self._make_room(key)
            block.ref_count = 1
            block.key = key
            block.position = position
            block.category = category
            self._resident[key] = block
            held = (block,)
            policy.on_insert(held)
        else:
            held = (block,)
            if self._tells_hits:
                policy.on_hit(held, False)
            block.ref_count = 1
            policy.on_acquire(held)
        block.ref_count = 0
        policy.on_release(held)
        return is_hit

    def _make_room(self, key: int) -> Block:
        resident = self._resident
        if len(resident) < self._capacity_blocks:
            return Block(len(resident))
        victim = self._policy.pop_victim(key)
        if self._tells_evictions:
            self._policy.on_evict(victim)
        del resident[victim.key]  # type: ignore[arg-type]  # a resident block has a key, which is an int here
        return victim


class RunwiseCache:
    """As `RequestwiseCache` under LRU, of which every request keeps a run: a slice of arrays, not block by block.

    Under LRU no block outlives the one before it, so the resident ones of a request are its first ones.
    """

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity_blocks = capacity_blocks
        self._pool = RunPool(capacity_blocks, NoLog())

    def access(self, keys: Sequence[int]) -> int:
        """Pins, brings in and releases the request's blocks. Returns how many of the first ones were resident."""
        pool, num_kept = self._pool, min(len(keys), self._capacity_blocks)
        text = pool.index.text(HashKeys(0, keys, 1, 1, num_kept))
        table = pool.index.leading(text, num_kept)
        num_leading = len(table)
        if num_leading:
            pool.adopt(table, pool.idle_parts(table), 0)
        if num_leading < num_kept:
            taken = pool.take(num_kept - num_leading, 0)
            pool.index.insert(text, num_leading, num_kept, taken)
            table += taken
        pool.release(table, num_kept, text, 0)
        return num_leading


class RequestwiseCache:
    """A whole request at a time, pinned while its missing blocks come in, through the product's own block pool."""

    def __init__(self, policy: EvictionPolicy, capacity_blocks: int, leaf_first: bool) -> None:
        self._capacity_blocks = capacity_blocks
        links = LinkedIndex()
        leaf_first = leaf_first or policy.leaf_first
        self._index = links if leaf_first or not policy.is_prefix_closed else HashIndex()
        eviction = LeafFirst(policy, links) if leaf_first else policy
        self._pool = BlockPool(capacity_blocks, eviction, NoLog(), self._index)

    @property
    def num_orphans(self) -> int:
        """Resident blocks whose parent is not."""
        return self._index.num_orphans

    def resident(self) -> Iterable[int]:
        """The keys of what is resident, in no order that means anything."""
        return (block.key for block in self._pool.blocks if block.key is not None)  # type: ignore[misc]  # all are ints

    def num_leading(self, keys: Sequence[int]) -> int:
        """How many of the request's first blocks are resident."""
        return len(self._index.leading(keys))

    def access(self, keys: Sequence[int], category: int) -> None:
        """Resident blocks are pinned and count as hit, missing ones come in as far as there is room beside them, and
        all are released last to first. In that order the new ones come in, too: among blocks of one request a policy
        that goes by insertion then keeps the first longest.
        """
        pool, get = self._pool, self._index.get
        held = {key: block for key in keys if (block := get(key)) is not None}
        if held:
            pool.adopt(list(held.values()), 0, readmission=False)
        missing = [i for i, key in enumerate(keys) if key not in held][: self._capacity_blocks - len(held)]
        if missing:
            taken = pool.take(len(missing), 0, [keys[i] for i in missing])
            held.update((keys[i], block) for i, block in zip(missing, taken, strict=True))
            missing.reverse()
            new_keys, parents = [keys[i] for i in missing], [keys[i - 1] if i else None for i in missing]
            pool.register(taken[::-1], new_keys, 0, missing, category, parents)
        pool.release([held[key] for key in reversed(keys) if key in held], 0)
