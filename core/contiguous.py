"""Contiguous allocation: pool and tables in which every sequence has one run of blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Sequence as SequenceOf

from core.block_pool import BlockPool
from core.block_tables import BlockTables
from core.decision_log import DecisionLog, Event
from core.interfaces import Block, ContiguousAllocation, EvictionPolicy, Run
from core.kv_group import KVGroup
from core.plan import StepPlan
from core.prefix_index import HashIndex
from core.request import Request, Sequence
from core.swap import HostPool


class ContiguousPool(BlockPool):
    """A pool whose blocks are taken by place: nothing is cached, nothing shared. Which places are free the allocation
    policy knows.
    """

    def take_run(self, run: Run, request_id: int) -> list[Block]:
        """References the blocks of a run that is free."""
        blocks = self._blocks_of(run)
        for block in blocks:
            block.ref_count = 1
        self.num_referenced += len(blocks)
        self.num_available -= len(blocks)
        self._log.blocks(Event.ALLOC, request_id, blocks)
        return blocks

    def move_run(self, blocks: SequenceOf[Block], start: int, request_id: int) -> list[Block]:
        """References as many blocks from place `start` on instead of these; the two runs may overlap."""
        moved = self._blocks_of(Run(start, len(blocks)))
        for block in blocks:
            block.ref_count = 0
        for block in moved:
            block.ref_count = 1
        self._log.blocks(Event.MOVE, request_id, moved)
        return moved

    def release(self, blocks: SequenceOf[Block], request_id: int) -> None:
        if not blocks:
            return
        for block in blocks:
            block.ref_count = 0
        self.num_referenced -= len(blocks)
        self.num_available += len(blocks)
        self._log.blocks(Event.FREE, request_id, blocks)

    def _blocks_of(self, run: Run) -> list[Block]:
        end = run.start + run.num_blocks
        first = self.first_block_id
        self.blocks.extend(Block(first + place) for place in range(len(self.blocks), end))
        return self.blocks[run.start : end]

    def check_integrity(self, tables: Iterable[SequenceOf[Block]]) -> None:
        """Proves that every table is a run of its own, and that counts equal the tables. O(pool): for tests."""
        referenced = [block for table in tables for block in table]
        ids = [block.block_id for block in referenced]
        assert len(set(ids)) == len(ids), "two sequences have one block"
        assert sum(block.ref_count for block in self.blocks) == len(ids), "wrong reference counts"
        assert all(block.ref_count == 1 for block in referenced), "a block in use counts as free"
        assert self.num_referenced == len(ids), "counts are off"
        assert self.num_available == (self.num_blocks or 0) - len(ids), "counts are off"
        for table in tables:
            first = table[0].block_id if table else 0
            assert [block.block_id for block in table] == list(range(first, first + len(table))), "a broken run"


class ContiguousTables(BlockTables):
    """Block tables of consecutive ids. What a run has more than its sequence asked for (buddy: a power of two) is lost
    to everybody until the run is free.
    """

    is_contiguous = True

    def __init__(
        self,
        num_blocks: int,
        first_block_id: int,
        eviction: EvictionPolicy,
        placement: ContiguousAllocation,
        block_size: int,
        log: DecisionLog,
        max_batch_tokens: int,
    ) -> None:
        pool = ContiguousPool(num_blocks, eviction, log, HashIndex(), first_block_id=first_block_id)
        super().__init__(
            pool, eviction, placement, (KVGroup(1),), block_size, log, HostPool(0), False, max_batch_tokens
        )
        self.num_padding_blocks = 0
        self._runs_pool = pool
        self._placement = placement
        self._runs: dict[Sequence, Run] = {}
        self._owners: dict[int, Sequence] = {}  # by the start of their run

    # ---- questions ------------------------------------------------------------------------------------------------

    def num_needed(self, sequence: Sequence, num_new: int, num_computed: int, num_held_blocks: int) -> int:
        """Blocks of the run to take: none, or a whole one, since the old is free only once it is copied."""
        target = self.allocation.target_blocks(sequence.request, num_computed + num_new)
        return target if target > num_held_blocks else 0

    def can_take(self, num_blocks: int) -> bool:
        return num_blocks == 0 or self._placement.can_place(num_blocks)

    def num_external_tokens(self, is_short: bool) -> int:
        """Slots that serve nobody: padding, and, while somebody `is_short` of memory, all that is free."""
        num_lost = self.num_padding_blocks if not is_short else self.pool.num_available
        return num_lost * self.block_size

    # ---- changes --------------------------------------------------------------------------------------------------

    def grow(self, sequence: Sequence, num_new: int, plan: StepPlan) -> None:
        """Gives the sequence a run for its next `num_new` tokens, where it has none that is long enough."""
        table = sequence.tables[0]
        num_blocks = self.num_needed(sequence, num_new, sequence.num_computed, len(table))
        if num_blocks:
            run = self._place(num_blocks, plan)
            blocks = self._runs_pool.take_run(Run(run.start, num_blocks), sequence.request.request_id)
            if table:
                self._move_into(sequence, blocks, plan)
            table[:] = blocks
            self._own(sequence, run)
        self.note_surplus(sequence)

    def append_blocks(self, sequences: Collection[Sequence]) -> None:
        """Nothing to do: who outgrows its run gets another by `grow`, with a plan that moves its blocks."""

    def release(self, sequence: Sequence) -> None:
        if sequence.tables[0]:
            self._disown(sequence)
        super().release(sequence)

    def undo_step(self, request: Request, plan: StepPlan, keep_registrations: bool) -> None:
        """What was to be moved for a request that has just been preempted stays where it is."""
        for sequence in request.live:
            for block in sequence.tables[0]:
                plan.moves.pop(block.block_id, None)

    def _place(self, num_blocks: int, plan: StepPlan) -> Run:
        """A run that the caller has made sure there is, once others have made way for it."""
        run = self._placement.place(num_blocks)
        if run is None:
            self._compact(num_blocks, plan)
            run = self._placement.place(num_blocks)
        assert run is not None, "a run was promised that there is not"
        return run

    def _compact(self, num_blocks: int, plan: StepPlan) -> None:
        for run, start in self._placement.compact(num_blocks):
            sequence = self._owners.pop(run.start)
            table = sequence.tables[0]
            moved = self._runs_pool.move_run(table, start, sequence.request.request_id)
            for source, target in zip(table, moved, strict=True):
                plan.move(source.block_id, target.block_id)
            table[:] = moved
            self._runs[sequence] = run._replace(start=start)
            self._owners[start] = sequence

    def _move_into(self, sequence: Sequence, blocks: SequenceOf[Block], plan: StepPlan) -> None:
        """The old run goes where the new one begins, and is free."""
        table, request_id = sequence.tables[0], sequence.request.request_id
        self._log.blocks(Event.MOVE, request_id, blocks[: len(table)])
        for source, target in zip(table, blocks, strict=False):
            plan.move(source.block_id, target.block_id)
        self._disown(sequence)
        self.blocks.release(table[::-1], request_id)

    def _own(self, sequence: Sequence, run: Run) -> None:
        self._runs[sequence] = run
        self._owners[run.start] = sequence
        self.num_padding_blocks += run.num_blocks - len(sequence.tables[0])

    def _disown(self, sequence: Sequence) -> None:
        run = self._runs.pop(sequence)
        del self._owners[run.start]
        self.num_padding_blocks -= run.num_blocks - len(sequence.tables[0])
        self._placement.free(run)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Also that the policy's free runs and the runs in use cover the pool once. O(pool): for tests."""
        sequences = [sequence for sequence in sequences if sequence.tables[0]]
        self.blocks.check_integrity([sequence.tables[0] for sequence in sequences])
        runs = [*self._placement.free_runs(), *(self._runs[sequence] for sequence in sequences)]
        place = 0
        for run in sorted(runs):
            assert run.start == place, f"blocks {place} to {run.start - 1} are lost, or in two runs"
            place = run.start + run.num_blocks
        assert place == self.pool.num_blocks, "the end of the pool is lost"
        assert len(self._runs) == len(sequences), "a run without a sequence"
