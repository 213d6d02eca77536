"""Block tables of ids over a pool of runs: the fast form of prefix caching under LRU."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable

from core.block_pool import BlockPool
from core.block_tables import NO_HIT, BlockTables, PrefixHit
from core.decision_log import DecisionLog, Event
from core.interfaces import AllocationPolicy, EvictionPolicy
from core.kv_group import KVGroup
from core.plan import StepPlan
from core.prefix_index import HashIndex
from core.request import BlockTable, Request, Sequence
from core.run_pool import RunPool
from core.swap import HostPool


class RunTables(BlockTables):
    """As `BlockTables`, of one KV group with full attention and requests of one sample each, without swapping.

    A table is an array of block ids. The blocks among its first `num_registered` are those with content.
    """

    is_by_runs = True

    def __init__(
        self,
        pool: RunPool,
        eviction: EvictionPolicy,
        allocation: AllocationPolicy,
        groups: tuple[KVGroup, ...],
        block_size: int,
        log: DecisionLog,
        prefix_caching: bool,
        max_batch_tokens: int,
    ) -> None:
        super().__init__(
            BlockPool(0, eviction, log, HashIndex()),  # no block is an object
            eviction,
            allocation,
            groups,
            block_size,
            log,
            HostPool(0),
            prefix_caching,
            max_batch_tokens,
        )
        self.pool = self._runs = pool
        self.free_ids = pool.free

    def empty(self) -> list[BlockTable]:
        return [array("q")]

    def find_prefix(self, sequence: Sequence) -> PrefixHit:
        num_blocks = (sequence.num_known - 1) // self.block_size
        if not sequence.request.num_preemptions:
            num_blocks = min(num_blocks, sequence.keys.num_shared)
        if num_blocks == 0 or not len(self._runs.index):
            return NO_HIT
        ids = self._runs.index.leading(sequence.keys.keys(0, num_blocks))
        if not ids:
            return NO_HIT
        return PrefixHit(len(ids) * self.block_size, [ids], self._runs.num_idle(ids))

    def adopt(self, sequence: Sequence, hit: PrefixHit, readmission: bool) -> None:
        ids: array[int] = hit.tables[0]
        self._runs.adopt(ids, sequence.request_id)
        sequence.tables[0].extend(ids)
        sequence.stored_computed = hit.num_tokens
        sequence.num_registered = len(ids)

    def extend(self, sequence: Sequence, num_new: int) -> None:
        table: array[int] = sequence.tables[0]
        num_blocks = -(-(sequence.num_computed + num_new) // self.block_size) - len(table)
        if num_blocks > 0:
            table += self._runs.take(num_blocks, sequence.request_id)
            if len(table) == sequence.num_peak_blocks:
                self.note_surplus(sequence)

    def top_up(self) -> None:
        self._runs.top_up()

    def append_blocks(self, sequences: Collection[Sequence]) -> None:
        ids = self._runs.take_for([sequence.request_id for sequence in sequences])
        for sequence, block_id in zip(sequences, ids, strict=True):
            table: array[int] = sequence.tables[0]
            table.append(block_id)
            if len(table) == sequence.num_peak_blocks:
                self.note_surplus(sequence)

    def _num_shared_tails(self, sequence: Sequence, num_computed: int) -> int:
        return 0

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        first, last = sequence.num_registered, num_tokens // self.block_size
        if last <= first:
            return
        table: array[int] = sequence.tables[0]
        ids, keys = table[first:last], sequence.keys
        num_shared = min(last, keys.num_shared) - first
        if num_shared > 0:
            self._runs.index.insert(keys.keys(first, first + num_shared), ids[:num_shared])
        self._log.ids(Event.CACHE, sequence.request_id, ids)
        sequence.num_registered = last

    def publish_filled(self, sequences: Collection[Sequence]) -> None:
        for sequence in sequences:
            place = sequence.num_registered
            if place < sequence.keys.num_shared:
                self.publish(sequence, sequence.num_computed + 1)
            else:
                table: array[int] = sequence.tables[0]
                self._log.count(Event.CACHE, sequence.request_id, table[place])
                sequence.num_registered = place + 1

    def undo_step(self, request: Request, plan: StepPlan, keep_registrations: bool) -> None:
        if self.prefix_caching and not keep_registrations:
            for sequence in request.live:
                self._unpublish(sequence)

    def _unpublish(self, sequence: Sequence) -> None:
        first, runs, keys = sequence.stored_computed // self.block_size, self._runs, sequence.keys
        for place in range(first, sequence.num_registered):
            block_id = sequence.tables[0][place]
            if not runs.is_shared(block_id):
                if place < keys.num_shared:
                    runs.index.remove([keys.key(place)], [block_id])
                runs.note_unregistered(block_id)
        sequence.num_registered = min(first, sequence.num_registered)

    def suspend(self, sequence: Sequence) -> None:
        """Its own text is content that it will ask for."""
        table: array[int] = sequence.tables[0]
        first, last = sequence.keys.num_shared, sequence.num_registered
        if last > first:
            self._runs.index.insert_private(sequence.keys.keys(first, last), table[first:last])
        self._give_up(sequence, last)

    def release(self, sequence: Sequence) -> None:
        self._give_up(sequence, min(sequence.num_registered, sequence.keys.num_shared))

    def _give_up(self, sequence: Sequence, num_findable: int) -> None:
        table: array[int] = sequence.tables[0]
        if table:
            self._runs.release(table, sequence.num_registered, num_findable, sequence.keys, sequence.request_id)
            sequence.tables[0] = array("q")
        sequence.num_registered = 0
        if sequence.num_surplus_tokens:
            self.num_surplus_tokens -= sequence.num_surplus_tokens
            sequence.num_surplus_tokens = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        self._runs.check_integrity([table for s in sequences for table in s.tables])
