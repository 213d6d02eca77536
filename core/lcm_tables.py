"""Block tables over large pages: every KV group has small pages of its own size (Jenga, SOSP'25)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf
from itertools import chain

from core.block_pool import BlockPool
from core.block_tables import BlockTables
from core.decision_log import DecisionLog, Event
from core.interfaces import Block, EvictionPolicy
from core.kv_group import KVGroup
from core.large_pages import Carving, LargePageAllocation, LargePages
from core.plan import StepPlan
from core.prefix_hit import NO_HIT, PrefixHit
from core.prefix_index import HashIndex
from core.request import Sequence
from core.running import RunningRequests
from core.swap import HostPool


class LcmPool(BlockPool):
    """A pool that counts in blocks of one layer: a block is a small page, and its id the place that it begins at.

    `num_available` is what large pages hold of which nobody holds a part. Holes in others serve one group only, and are
    not counted there.
    """

    def __init__(
        self,
        num_blocks: int | None,
        carving: Carving,
        eviction: EvictionPolicy,
        log: DecisionLog,
        index: HashIndex,
        first_block_id: int,
    ) -> None:
        num_pages = None if num_blocks is None else num_blocks // carving.large
        num_usable = None if num_pages is None else num_pages * carving.large
        super().__init__(num_usable, eviction, log, index, first_block_id=first_block_id)
        self.carving = carving
        self.pages = LargePages(num_pages, carving)
        self.num_available = self._num_available()

    def place(self, block: Block) -> int:
        """Where it begins, in blocks of one layer from the first of the pool."""
        return block.block_id - self.first_block_id

    def take_small(self, num_blocks: SequenceOf[int], request_id: int) -> list[list[Block]]:
        """So many small pages of each group, evicting where there is no room. There must be enough in all."""
        pages = self.pages
        num_carved = pages.num_carved(num_blocks)
        while not pages.has_room(num_blocks, num_carved):
            self._evict_next()
        taken = []
        for group, number in enumerate(num_blocks):
            blocks = [Block(self.first_block_id + pages.take(group, request_id), 1) for _ in range(number)]
            self.num_referenced += number * self.carving.layers[group]
            if blocks:
                self._log.blocks(Event.ALLOC, request_id, blocks)
            taken.append(blocks)
        self.num_available = self._num_available()
        if self.attribution is not None:
            self.attribution.taken_by(request_id)
        return taken

    def _evict_next(self) -> None:
        """Whom the policy names, of whatever group: its own may have the place, and all may once its page is empty."""
        victim = self._eviction.pop_victim(None)
        self._eviction.on_evict(victim)
        self._num_evictable -= 1
        self._forget((victim,))
        num_layers = self.carving.layers[self.pages.evict(self.place(victim))]
        self.num_cached -= num_layers - 1  # of which one was forgotten as a block

    def adopt(self, blocks: SequenceOf[Block], request_id: int, readmission: bool) -> None:
        self._eviction.on_hit(blocks, readmission)
        self._log.blocks(Event.TOUCH, request_id, blocks)
        idle = []
        for block in blocks:
            if block.ref_count == 0:
                idle.append(block)
            else:
                self.num_shared += self._num_layers(block)
            block.ref_count += 1
        for block in idle:
            num_layers = self.carving.layers[self.pages.adopt(self.place(block))]
            self.num_cached -= num_layers
            self.num_referenced += num_layers
        self._num_evictable -= len(idle)
        self.num_available = self._num_available()
        if idle:
            self._eviction.on_acquire(idle)

    def release(self, blocks: SequenceOf[Block], request_id: int) -> None:
        freed = self._dereference(blocks)
        if not freed:
            return
        hashed = [block for block in freed if block.key is not None]
        for block in freed:
            block.ref_count = 0
            if block.key is None:
                num_layers = self.carving.layers[self.pages.free(self.place(block))]
            else:
                num_layers = self.carving.layers[self.pages.keep(self.place(block))]
                self.num_cached += num_layers
            self.num_referenced -= num_layers
        self.num_available = self._num_available()
        self._log.blocks(Event.FREE, request_id, freed)
        if hashed:
            self._num_evictable += len(hashed)
            self._eviction.on_release(hashed)

    def _dereference(self, blocks: SequenceOf[Block]) -> SequenceOf[Block]:
        freed = []
        for block in blocks:
            if block.ref_count > 1:
                block.ref_count -= 1
                self.num_shared -= self._num_layers(block)
            else:
                freed.append(block)
        return freed

    def _num_layers(self, block: Block) -> int:
        return self.carving.layers[self.pages.group_of(self.place(block))]

    def _num_available(self) -> int:
        return (self.pages.num_free + self.pages.num_idle) * self.carving.large

    def check_groups(self, tables: SequenceOf[Iterable[Block]]) -> None:
        """Proves the books against the blocks of all tables, by group. O(pool): for tests."""
        references = [list(blocks) for blocks in tables]
        held = [{block.block_id: block for block in blocks} for blocks in references]
        cached = self._eviction.eviction_order()
        self.pages.check_integrity(
            [[self.place(block) for block in blocks.values()] for blocks in held],
            [self.place(block) for block in cached],
        )
        layers = self.carving.layers
        num_referenced = sum(len(blocks) * number for blocks, number in zip(held, layers, strict=True))
        num_kept = sum(map(self._num_layers, cached))
        num_shared = sum(map(self._num_layers, chain.from_iterable(references))) - num_referenced
        assert self.num_shared == num_shared, "counts are off"
        counted = (num_referenced, num_kept, len(cached), self._num_available())
        assert (self.num_referenced, self.num_cached, self._num_evictable, self.num_available) == counted, (
            "counts are off"
        )
        assert all(block.key is not None and block.ref_count == 0 for block in cached), "cached without content"


class LcmTables(BlockTables):
    """Tables whose groups draw on one pool of large pages, each in small pages of its own size.

    Needs, like what is available, count in blocks of one layer, and in whole large pages: how many would have to be
    taken, beyond the holes that already serve the group. Sequences are walked one by one (`is_windowed`), for what each
    needs depends on what those before it took; steps are decided one by one.

    Others may leave a request with its small pages scattered over more large pages than it would fill. Should it not
    even have room to grow when it is alone, it gives way to itself, and comes back to an empty pool, where they lie
    together.
    """

    def __init__(
        self,
        pool: LcmPool,
        eviction: EvictionPolicy,
        allocation: LargePageAllocation,
        groups: tuple[KVGroup, ...],
        block_size: int,
        log: DecisionLog,
        prefix_caching: bool,
        max_batch_tokens: int,
    ) -> None:
        super().__init__(
            pool, eviction, allocation, groups, block_size, log, HostPool(0), prefix_caching, max_batch_tokens
        )
        self.num_groups = sum(pool.carving.layers)  # slots that a token takes
        self.is_windowed = True
        self._carving = pool.carving
        self._pages = pool.pages
        self._small = pool
        self._found: tuple[Sequence | None, PrefixHit] = (None, NO_HIT)  # what was looked up last, and for whom

    # ---- prefix look-up -------------------------------------------------------------------------------------------

    def look_up(self, sequence: Sequence) -> PrefixHit:
        """Its idle blocks cost nothing here: until they are adopted, what it takes to hold them is part of a need."""
        found = self.find_prefix(sequence)
        hit = PrefixHit(found.num_tokens, found.tables, 0)
        self._found = (sequence, hit)
        return hit

    def _adopted(self, sequence: Sequence) -> list[list[int]]:
        """Places of the kept small pages, by group, that it is about to adopt."""
        for_whom, hit = self._found
        if for_whom is not sequence or sequence.tables[0]:
            return []
        return [
            [self._small.place(block) for block in table if block is not None and block.ref_count == 0]
            for table in hit.tables
        ]

    # ---- questions ------------------------------------------------------------------------------------------------

    def num_needed(self, sequence: Sequence, num_new: int, num_computed: int, num_held_blocks: int) -> int:
        """What the large pages hold that must be taken for `num_new` tokens after `num_computed`."""
        num_more = self.allocation.target_blocks(sequence.request, num_computed + num_new) - num_held_blocks
        return self._num_missing([num_more] * len(self.groups), sequence)

    def num_needed_for_all(self, sequence: Sequence, num_held_blocks: int) -> int:
        target = self.allocation.target_blocks(sequence.request, sequence.num_known)
        most = [
            target if group.window_tokens is None else min(target, self.most_window_blocks(group.window_tokens))
            for group in self.groups
        ]
        return self._num_missing([number - num_held_blocks for number in most], sequence)

    def _num_missing(self, num_blocks: SequenceOf[int], sequence: Sequence) -> int:
        return self._pages.num_missing(num_blocks, self._adopted(sequence)) * self._carving.large

    def num_alone(self, num_blocks: Iterable[int]) -> int:
        return self._carving.num_large(num_blocks) * self._carving.large

    def num_filled_tokens(self, running: RunningRequests, num_decodes: int) -> int:
        """O(running)."""
        num_empty = sum(
            len(sequence.tables[0]) * self.block_size - sequence.num_computed
            for sequence in (*running.batch.members.values(), *running.prefills.values(), *running.retired)
        )
        return self.pool.num_referenced * self.block_size + (num_decodes - num_empty) * self.num_groups

    def num_external_tokens(self, is_short: bool) -> int:
        """The holes: they serve one group, and none where that needs nothing."""
        holes = zip(self._pages.num_holes, self._carving.layers, strict=True)
        return sum(number * layers for number, layers in holes) * self.block_size

    # ---- changes --------------------------------------------------------------------------------------------------

    def grow(self, sequence: Sequence, num_new: int, plan: StepPlan) -> None:
        self.extend(sequence, num_new)

    def extend(self, sequence: Sequence, num_new: int) -> None:
        request = sequence.request
        target = self.allocation.target_blocks(request, sequence.num_computed + num_new)
        num_more = [max(target - len(table), 0) for table in sequence.tables]
        if any(num_more):
            taken = self._small.take_small(num_more, request.request_id)
            for table, blocks in zip(sequence.tables, taken, strict=True):
                table.extend(blocks)
        self.note_surplus(sequence)

    def append_blocks(self, sequences: Collection[Sequence]) -> None:
        for sequence in sequences:
            self.extend(sequence, 1)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        sequences = list(sequences)
        self._small.check_groups(
            [
                [block for s in sequences for block in s.tables[group] if block is not None]
                for group in range(len(self.groups))
            ]
        )
