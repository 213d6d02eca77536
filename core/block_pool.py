"""The block pool: which blocks are free, cached or referenced, and who comes next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import count

from core.attribution import BlockAttribution
from core.decision_log import NO_REQUEST, DecisionLog, Event
from core.interfaces import Block, BlockKey, EvictionPolicy
from core.pool import OutOfBlocksError, Pool
from core.prefix_index import HashIndex


class FreeOrder(Enum):
    """Where a released block without a registered hash goes (vLLM changed it between 0.20.2 and 0.25.1)."""

    UNHASHED_FIRST = "unhashed_first"  # on top of the free stack: reused first
    APPEND_ALL = "append_all"  # to the eviction policy, like the hashed ones, with key None


def hears_of_each(policy: EvictionPolicy) -> bool:
    """Whether the policy names one victim at a time, and hears of its end before it names the next.

    Otherwise it names them together, by what its own class, or one that this derives from, has for `pop_victims`. A
    class that changes one of the others without it changes what it stands for.
    """
    kinds = type(policy).__mro__

    def depth(name: str) -> int:
        return next(number for number, kind in enumerate(kinds) if name in vars(kind))

    together = depth("pop_victims")
    is_changed = depth("pop_victim") < together and kinds[together] is not EvictionPolicy
    return is_changed or depth("on_evict") < together


class BlockPool(Pool):
    """Blocks are FREE (no content), CACHED (content, unreferenced, evictable) or REFERENCED.

    A FREE block lies ready with the reference count 1 of whoever takes it next: taking and freeing touch the pool's
    lists only, never the blocks one by one.

    Block objects are made when first used, so an idle pool costs nothing, and `num_blocks=None` is unbounded. Ids count
    from `first_block_id`. Taking prefers FREE blocks; then the eviction policy names a CACHED one, which loses its
    content.
    """

    def __init__(
        self,
        num_blocks: int | None,
        eviction: EvictionPolicy,
        log: DecisionLog,
        index: HashIndex,
        free_order: FreeOrder = FreeOrder.UNHASHED_FIRST,
        first_block_id: int = 0,
    ) -> None:
        super().__init__(num_blocks, first_block_id)
        self.index = index
        self._num_evictable = 0  # held by the eviction policy: cached ones, and under APPEND_ALL all released ones
        self.blocks: list[Block] = []  # every block ever used, by id
        self._block_attribution: BlockAttribution | None = None  # the pool's
        self._eviction = eviction
        self._log = log
        self.free: list[Block] = []  # stack: the last is taken first
        self._keeps_unhashed_apart = free_order is FreeOrder.UNHASHED_FIRST
        self._hears_of_each = hears_of_each(eviction)

    @property
    def num_free(self) -> int:
        return self.num_available - self._num_evictable

    @property
    def num_orphans(self) -> int:
        return self.index.num_orphans

    @property
    def counts_orphans(self) -> bool:
        return self.index.is_linked

    def attribute_evictions(self, now: Callable[[], int], block_size: int) -> None:
        self.attribution = self._block_attribution = BlockAttribution(self.index.get, self._log, now, block_size)

    def block(self, block_id: int) -> Block:
        """The block of this id, which has been in use before."""
        return self.blocks[block_id - self.first_block_id]

    def take(self, num_blocks: int, request_id: int, incoming: Sequence[BlockKey | None] = ()) -> list[Block]:
        """Returns `num_blocks` blocks with reference count 1, evicting where nothing is free. O(log n) a block.

        `incoming` are the keys of the content that each will hold, where known: an eviction policy may ask.
        """
        taken = self._take(num_blocks, incoming)
        if self.attribution is not None:
            self.attribution.taken_by(request_id)
        self._log.blocks(Event.ALLOC, request_id, taken)
        return taken

    def take_for(self, request_ids: Sequence[int]) -> list[Block]:
        """Takes a block for each of these requests, whose decodes need one."""
        taken = self._take(len(request_ids), ())
        if self.attribution is not None and self.attribution.awaits_owner:
            self.attribution.taken_by_each([block.block_id for block in taken], request_ids)
        self._log.blocks_of(Event.ALLOC, request_ids, taken)
        return taken

    def _take(self, num_blocks: int, incoming: Sequence[BlockKey | None]) -> list[Block]:
        free = self.free
        taken = free[: -num_blocks - 1 : -1]  # the last first; all of them if they are fewer
        del free[len(free) - len(taken) :]
        if len(taken) < num_blocks:
            self._take_more(taken, num_blocks, incoming)
        self.num_referenced += num_blocks
        self.num_available -= num_blocks
        return taken

    def _take_more(self, taken: list[Block], num_blocks: int, incoming: Sequence[BlockKey | None]) -> None:
        """Adds to `taken`, where the free stack was too short: blocks never used before, then victims."""
        num_missing = num_blocks - len(taken)
        num_fresh = num_missing if self.num_blocks is None else min(num_missing, self.num_blocks - len(self.blocks))
        num_victims = num_missing - num_fresh
        if num_victims > self._num_evictable:
            self.free.extend(reversed(taken))
            raise OutOfBlocksError(f"{num_blocks} blocks asked for, {self.num_available} available")
        first = self.first_block_id + len(self.blocks)
        fresh = [Block(block_id, 1) for block_id in range(first, first + num_fresh)]
        self.blocks.extend(fresh)
        taken.extend(fresh)
        if num_victims:
            taken.extend(self._evict(num_victims, incoming[len(taken) :]))

    def _evict(self, num_blocks: int, incoming: Sequence[BlockKey | None]) -> list[Block]:
        wanted = [*incoming, *[None] * (num_blocks - len(incoming))]
        if self._hears_of_each:
            victims = self._evict_one_by_one(wanted)
        else:
            victims = self._eviction.pop_victims(wanted)
            self._forget([block for block in victims if block.key is not None])
        self._num_evictable -= len(victims)
        for block in victims:
            block.ref_count = 1
        self.free += victims[: num_blocks - 1 : -1]  # more than was wanted, of whole leaves: the first is taken next
        return victims[:num_blocks]

    def _evict_one_by_one(self, wanted: Sequence[BlockKey | None]) -> list[Block]:
        """A policy that wants to hear of evictions hears of each before it names the next."""
        victims = []
        for key in wanted:
            victim = self._eviction.pop_victim(key)
            victims.append(victim)
            if victim.key is not None:
                self._eviction.on_evict(victim)
                self._forget((victim,))
        return victims

    def _forget(self, victims: Sequence[Block]) -> None:
        """These blocks lose their content."""
        self.num_cached -= len(victims)
        self.num_evictions += len(victims)
        self._log.blocks(Event.EVICT, NO_REQUEST, victims)
        if self._block_attribution is not None:
            self._block_attribution.evicted([block.key for block in victims], [block.block_id for block in victims])
        self.index.remove(victims)

    def adopt(self, blocks: Sequence[Block], request_id: int, readmission: bool) -> None:
        """An admitted request adopts cached content: one more reference each. `blocks` go root to leaf."""
        self._eviction.on_hit(blocks, readmission)
        self._log.blocks(Event.TOUCH, request_id, blocks)
        idle = []
        for block in blocks:
            if block.ref_count == 0:
                idle.append(block)
            block.ref_count += 1
        self.num_shared += len(blocks) - len(idle)
        if idle:
            self.num_cached -= len(idle)
            self._num_evictable -= len(idle)
            self.num_referenced += len(idle)
            self.num_available -= len(idle)
            self._eviction.on_acquire(idle)

    def share(self, blocks: Sequence[Block]) -> None:
        """One more reference to blocks that are referenced already: a sample starts from them."""
        for block in blocks:
            block.ref_count += 1
        self.num_shared += len(blocks)

    def release(self, blocks: Sequence[Block], request_id: int) -> None:
        """Drops one reference each. `blocks` go leaf to root, so that a tail is reused and evicted before its root."""
        freed = self._dereference(blocks)
        if not freed:
            return
        self.num_referenced -= len(freed)
        self.num_available += len(freed)
        self._log.blocks(Event.FREE, request_id, freed)
        hashed = [block for block in freed if block.key is not None] if len(self.index) else []
        self.num_cached += len(hashed)
        if self._keeps_unhashed_apart:
            if not hashed:
                self.free += freed[::-1]
                return
            if len(hashed) < len(freed):
                self.free += [block for block in reversed(freed) if block.key is None]
            freed = hashed
        for block in freed:
            block.ref_count = 0
        self._num_evictable += len(freed)
        self._eviction.on_release(freed)

    def _dereference(self, blocks: Sequence[Block]) -> Sequence[Block]:
        """Drops all references beyond the first. Returns the blocks that had only that: it is theirs to lose."""
        if self.num_shared == 0:
            return blocks
        freed = []
        for block in blocks:
            if block.ref_count > 1:
                block.ref_count -= 1
            else:
                freed.append(block)
        self.num_shared -= len(blocks) - len(freed)
        return freed

    def register(
        self,
        blocks: Sequence[Block],
        keys: Sequence[BlockKey],
        request_id: int,
        positions: Iterable[int] | None = None,
        category: int = 0,
        parents: Sequence[BlockKey | None] = (),
    ) -> None:
        """Publishes the content of referenced full blocks. `positions`: theirs in their chain (None: from its root).

        `parents`: the key before each one's own in its chain (None: a root), which a linked index needs.
        """
        for block, position in zip(blocks, count() if positions is None else positions, strict=False):
            block.position = position
            block.category = category
        self.index.insert(blocks, keys, parents)
        self._eviction.on_insert(blocks)
        self._log.blocks(Event.CACHE, request_id, blocks)

    def register_for(self, blocks: Sequence[Block], keys: Sequence[BlockKey], request_ids: Sequence[int]) -> None:
        """Publishes one block of each of these requests; its position and category are set already."""
        self.index.insert(blocks, keys)
        self._eviction.on_insert(blocks)
        self._log.blocks_of(Event.CACHE, request_ids, blocks)

    def unregister(self, block: Block) -> None:
        """Takes back the publication of a referenced block whose content was never computed."""
        self._log.blocks(Event.EVICT, NO_REQUEST, (block,))
        self._eviction.on_evict(block)
        self.index.remove((block,))

    def free_queue(self) -> list[int]:
        """Ids of all available blocks in the order in which they would be taken. O(pool): for tests and parity only."""
        assert self.num_blocks is not None
        fresh = range(self.first_block_id + len(self.blocks), self.first_block_id + self.num_blocks)
        cached = [block.block_id for block in self._eviction.eviction_order()]
        return [block.block_id for block in reversed(self.free)] + list(fresh) + cached

    def check_integrity(self, tables: Iterable[Sequence[Block]]) -> None:
        """Proves that the states partition the pool and that counts equal the block tables. O(pool): for tests."""
        references: dict[int, int] = {}
        for table in tables:
            for block in table:
                references[block.block_id] = references.get(block.block_id, 0) + 1
        free = {block.block_id for block in self.free}
        for block in self.blocks:
            assert block.ref_count == references.get(block.block_id, int(block.block_id in free)), (
                f"block {block.block_id}: wrong reference count"
            )
        evictable = self._eviction.eviction_order()
        cached = {block.block_id for block in evictable}
        referenced = set(references)
        used = {block.block_id for block in self.blocks}
        assert len(free) == len(self.free), "a block is free twice"
        assert free | cached | referenced == used, f"lost blocks: {used - free - cached - referenced}"
        in_two_states = free & cached | free & referenced | cached & referenced
        assert not in_two_states, f"blocks in two states: {in_two_states}"
        num_cached = sum(block.key is not None for block in evictable)
        num_shared = sum(references.values()) - len(references)
        counts = (self._num_evictable, self.num_cached, self.num_referenced, self.num_shared)
        counted = (len(evictable), num_cached, len(referenced), num_shared)
        assert counts == counted, f"counts are off: {counts}, not {counted}"
        assert all(block.key is None for block in self.free), "a free block still has content"
