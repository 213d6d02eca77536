"""Block tables of ids: the fast form of prefix caching, where the pool's eviction policy has one."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable

from core.block_pool import BlockPool
from core.block_tables import BlockTables
from core.decision_log import DecisionLog, Event
from core.id_pool import IdPool
from core.interfaces import AllocationPolicy, EvictionPolicy
from core.kv_group import KVGroup
from core.numbered_text import NO_TEXT, NumberedText
from core.plan import StepPlan
from core.prefix_hit import NO_HIT, PrefixHit
from core.prefix_index import HashIndex
from core.request import BlockTable, Request, Sequence
from core.swap import HostPool


class IdTables(BlockTables):
    """As `BlockTables`, of one KV group with full attention and requests of one sample each, without swapping.

    A table is an array of block ids. The blocks among its first `num_registered` are those with content.
    """

    def __init__(
        self,
        pool: IdPool,
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
        self.pool = self.ids = pool

    def empty(self) -> list[BlockTable]:
        return [array("q")]

    def find_prefix(self, sequence: Sequence) -> PrefixHit:
        pool, size = self.ids, self.block_size
        ids = pool.index.leading(self._text(sequence), (sequence.num_known - 1) // size)
        if not ids:
            return NO_HIT
        parts = pool.idle_parts(ids)
        return PrefixHit(len(ids) * size, [ids], sum([end - begin for _, begin, end in parts]), idle_parts=parts)

    def num_cached_tokens(self, request: Request) -> int:
        size = self.block_size
        return self.ids.index.num_leading(request.keys, (request.num_prompt_tokens - 1) // size) * size

    def has_beginning(self, request: Request) -> bool:
        return self.ids.index.num_leading(request.keys, 1) > 0

    def _text(self, sequence: Sequence) -> NumberedText:
        text = sequence.text
        if text is None:
            text = sequence.text = self.ids.index.text(sequence.keys)
        return text

    def adopt(self, sequence: Sequence, hit: PrefixHit, readmission: bool) -> None:
        ids: array[int] = hit.tables[0]
        assert hit.idle_parts is not None
        self.ids.adopt(ids, hit.idle_parts, sequence.request_id)
        sequence.tables[0].extend(ids)
        sequence.stored_computed = hit.num_tokens
        sequence.num_registered = len(ids)

    def extend(self, sequence: Sequence, num_new: int) -> None:
        table: array[int] = sequence.tables[0]
        num_blocks = -(-(sequence.num_computed + num_new) // self.block_size) - len(table)
        if num_blocks > 0:
            text, num_known = sequence.text or NO_TEXT, sequence.num_known // self.block_size
            table += self.ids.take(num_blocks, sequence.request_id, text, len(table), num_known)
            if len(table) == sequence.num_peak_blocks:
                self.note_surplus(sequence)

    def append_blocks(self, sequences: Collection[Sequence]) -> None:
        ids = self.ids.take_for([sequence.request_id for sequence in sequences])
        for place, sequence in enumerate(sequences):
            table: array[int] = sequence.tables[0]
            table.append(ids[place])
            if len(table) == sequence.num_peak_blocks:
                self.note_surplus(sequence)

    def _num_shared_tails(self, sequence: Sequence, num_computed: int) -> int:
        return 0

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        first, last = sequence.num_registered, num_tokens // self.block_size
        if last <= first:
            return
        table: array[int] = sequence.tables[0]
        self.ids.register(self._text(sequence), first, table[first:last], sequence.request_id)
        sequence.num_registered = last

    def publish_filled(self, sequences: Collection[Sequence]) -> None:
        ids = array("q", [self.publish_next(sequence) for sequence in sequences])
        self.ids.entered(ids)
        self._log.ids_of(Event.CACHE, [sequence.request_id for sequence in sequences], ids)

    def publish_next(self, sequence: Sequence) -> int:
        """Notes the first block of its table that is not in the prefix index there, where anybody may ask for it.

        Returns its id, for the pool, where it has to have `entered` it, and the log.
        """
        table: array[int] = sequence.tables[0]
        place = sequence.num_registered
        text = self._text(sequence)
        if place < self.ids.first_own(text):
            self.ids.index.insert(text, place, place + 1, table[place : place + 1])
        sequence.num_registered = place + 1
        return table[place]

    def publishes_known(self, sequences: Iterable[Sequence]) -> bool:
        """May one of these, in decodes, publish content of which the prefix index knows?"""
        for sequence in sequences:
            if sequence.text is None or sequence.num_registered < self.ids.first_own(sequence.text):
                return True
        return False

    def undo_step(self, request: Request, plan: StepPlan, keep_registrations: bool) -> None:
        if self.prefix_caching and not keep_registrations:
            for sequence in request.live:
                self._unpublish(sequence)

    def _unpublish(self, sequence: Sequence) -> None:
        first, pool, table = sequence.stored_computed // self.block_size, self.ids, sequence.tables[0]
        places = [place for place in range(first, sequence.num_registered) if not pool.is_shared(table[place])]
        if places:
            pool.unregister(self._text(sequence), places, table)
        sequence.num_registered = min(first, sequence.num_registered)

    def suspend(self, sequence: Sequence) -> None:
        """Its own text is content that it will ask for."""
        table: array[int] = sequence.tables[0]
        if sequence.num_registered:
            self.ids.keep_own(self._text(sequence), sequence.num_registered, table)
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        table: array[int] = sequence.tables[0]
        if table:
            text = sequence.text or NO_TEXT
            self.ids.release(table, sequence.num_registered, text, sequence.request_id)
            sequence.tables[0] = array("q")
        sequence.num_registered = 0
        if sequence.num_surplus_tokens:
            self.num_surplus_tokens -= sequence.num_surplus_tokens
            sequence.num_surplus_tokens = 0

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        self.ids.check_integrity([table for s in sequences for table in s.tables])
