"""Block tables over large pages: every KV group has small pages of its own size (Jenga, SOSP'25)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf

from core.block_pool import UNBOUNDED, BlockPool
from core.block_tables import BlockTables
from core.decision_log import DecisionLog, Event
from core.interfaces import Block, EvictionPolicy
from core.kv_group import KVGroup
from core.large_pages import Carving, LargePageAllocation, LargePages
from core.plan import StepPlan
from core.prefix_index import HashIndex
from core.request import Request, Sequence
from core.running import RunningRequests
from core.swap import HostPool


class LcmPool(BlockPool):
    """A pool that counts in blocks of one layer: a block is a small page, and its id the place that it begins at.

    `num_available` is what free large pages hold; holes in partly used ones serve one group only, and are not counted
    there. Nothing is cached, nothing shared.
    """

    def __init__(
        self, num_blocks: int | None, carving: Carving, eviction: EvictionPolicy, log: DecisionLog, first_block_id: int
    ) -> None:
        num_pages = None if num_blocks is None else num_blocks // carving.large
        num_usable = None if num_pages is None else num_pages * carving.large
        super().__init__(num_usable, eviction, log, HashIndex(), first_block_id=first_block_id)
        self.carving = carving
        self.pages = LargePages(num_pages, carving)

    def take_small(self, group: int, num_blocks: int, request_id: int) -> list[Block]:
        """So many small pages of the group, those of its own large pages first."""
        first = self.first_block_id
        taken = [Block(first + self.pages.take(group, request_id), 1) for _ in range(num_blocks)]
        self.num_referenced += num_blocks * self.carving.layers[group]
        self._count_available()
        self._log.blocks(Event.ALLOC, request_id, taken)
        return taken

    def release(self, blocks: SequenceOf[Block], request_id: int) -> None:
        if not blocks:
            return
        for block in blocks:
            group = self.pages.free(block.block_id - self.first_block_id)
            self.num_referenced -= self.carving.layers[group]
            block.ref_count = 0
        self._count_available()
        self._log.blocks(Event.FREE, request_id, blocks)

    def _count_available(self) -> None:
        most = UNBOUNDED if self.num_blocks is None else self.num_blocks
        self.num_available = most - self.pages.num_used * self.carving.large


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
        num_blocks: int | None,
        first_block_id: int,
        eviction: EvictionPolicy,
        allocation: LargePageAllocation,
        groups: tuple[KVGroup, ...],
        block_size: int,
        log: DecisionLog,
        max_batch_tokens: int,
    ) -> None:
        carving = Carving.of(groups)
        pool = LcmPool(num_blocks, carving, eviction, log, first_block_id)
        super().__init__(pool, eviction, allocation, groups, block_size, log, HostPool(0), False, max_batch_tokens)
        self.num_groups = sum(carving.layers)  # slots that a token takes
        self.is_windowed = True
        self._carving = carving
        self._pages = pool.pages
        self._small = pool

    # ---- questions ------------------------------------------------------------------------------------------------

    def num_needed(self, sequence: Sequence, num_new: int, num_computed: int, num_held_blocks: int) -> int:
        """What the large pages hold that must be taken for `num_new` tokens after `num_computed`."""
        num_more = self.allocation.target_blocks(sequence.request, num_computed + num_new) - num_held_blocks
        return self._num_missing([num_more] * len(self.groups))

    def num_needed_for_all(self, sequence: Sequence, num_held_blocks: int) -> int:
        num_more = self.allocation.target_blocks(sequence.request, sequence.num_known) - num_held_blocks
        return self._num_missing(self._within_windows(num_more))

    def _within_windows(self, num_blocks: int) -> list[int]:
        """Of so many blocks, those that a sequence holds at most at a time, by group."""
        return [
            num_blocks if group.window_tokens is None else min(num_blocks, self.most_window_blocks(group.window_tokens))
            for group in self.groups
        ]

    def _num_missing(self, num_blocks: Iterable[int]) -> int:
        return self._pages.num_missing(num_blocks) * self._carving.large

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
        for group, table in enumerate(sequence.tables):
            if target > len(table):
                table.extend(self._small.take_small(group, target - len(table), request.request_id))
        self.note_surplus(sequence)

    def append_blocks(self, sequences: Collection[Sequence]) -> None:
        for sequence in sequences:
            self.extend(sequence, 1)

    def undo_step(self, request: Request, plan: StepPlan, keep_registrations: bool) -> None:
        """Nothing was published or copied."""

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        places: list[list[int]] = [[] for _ in self.groups]
        for sequence in sequences:
            for of_group, table in zip(places, sequence.tables, strict=True):
                of_group += [block.block_id - self.pool.first_block_id for block in table if block is not None]
        self._pages.check_integrity(places)
        held = zip(places, self._carving.layers, strict=True)
        assert self.pool.num_referenced == sum(len(of_group) * layers for of_group, layers in held), "counts are off"
        num_used = self._pages.num_used * self._carving.large
        assert self.pool.num_available + num_used == (self.pool.num_blocks or UNBOUNDED), "counts are off"
