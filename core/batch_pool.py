"""The block pool whose eviction policy hears of many blocks at a time."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from core.batch_eviction import FEW, BatchEviction, Ints, array_of, view_of
from core.batch_index import BatchIndex
from core.decision_log import DecisionLog, Event
from core.id_pool import IdlePart, IdPool
from core.numbered_text import NumberedText


class BatchPool(IdPool):
    """As `BlockPool` with a linked index, with block ids for block objects and a policy's batch form for the policy.

    A block costs its share of some array operations, however long its table.
    """

    def __init__(
        self, num_blocks: int, eviction: BatchEviction, index: BatchIndex, log: DecisionLog, first_block_id: int = 0
    ) -> None:
        super().__init__(num_blocks, index, log, first_block_id)
        self._index = index
        self._eviction = eviction
        # By id: references beyond the first, which free ones lie ready with; -1: nobody references what it holds.
        self._num_others_of = np.zeros(first_block_id + num_blocks, dtype=np.int32)
        self._num_others = self._num_others_of.data  # where one is looked up

    @property
    def num_orphans(self) -> int:
        return self._index.num_orphans

    @property
    def counts_orphans(self) -> bool:
        return True

    def _victims(self, num_blocks: int, text: NumberedText, first: int, num_known: int) -> array[int]:
        incoming = None
        if self._eviction.asks_incoming and first < min(num_known, text.num_numbered):
            incoming = _numbers(text, first, num_blocks, num_known)
        victims = self._eviction.choose(num_blocks, incoming)
        self.lose(victims)
        return victims

    def draw_ahead(self, num_blocks: int) -> tuple[array[int], int]:
        drawn = self._draw_free(num_blocks)
        num_free = len(drawn)
        if num_free < num_blocks:
            drawn += self._eviction.foresee(num_blocks - num_free)
        return drawn, num_free

    def draw_next(self, num_blocks: int) -> tuple[array[int], int]:
        drawn = self._draw_free(num_blocks)
        num_free = len(drawn)
        if num_free < num_blocks:
            drawn += self._eviction.choose(num_blocks - num_free, None)
        return drawn, num_free

    def _draw_free(self, most: int) -> array[int]:
        num_free = self.free.length + self._num_blocks - self._num_used
        return self.draw(min(most, num_free))[0] if num_free else array("q")

    def lose(self, victims: array[int]) -> None:
        self._index.evict(victims)
        if self.attribution is not None:
            self.attribution.note_evicted(victims)
        if len(victims) > FEW:
            self._num_others_of[view_of(victims)] = 0
        else:
            for block_id in victims:
                self._num_others[block_id] = 0

    # ---- hits -------------------------------------------------------------------------------------------------------

    def idle_parts(self, ids: array[int]) -> list[IdlePart]:
        """Of parts that have no numbers of their own."""
        is_idle = self._num_others_of[view_of(ids)] < 0
        num_idle = np.count_nonzero(is_idle)
        if num_idle == len(ids):
            return [(0, 0, len(ids))]
        if not num_idle:
            return []
        changes: list[int] = ((is_idle[1:] != is_idle[:-1]).nonzero()[0] + 1).tolist()
        parts = [(0, begin, end) for begin, end in pairwise((0, *changes, len(ids)))]
        return parts[0 if is_idle[0] else 1 :: 2]

    def adopt(self, ids: array[int], idle_parts: list[IdlePart], request_id: int) -> None:
        self._log.ids(Event.TOUCH, request_id, ids)
        each = view_of(ids)
        self._eviction.hit(each)
        self._num_others_of[each] += 1
        num_idle = 0
        for _, begin, end in idle_parts:
            self._eviction.wake(each[begin:end])
            num_idle += end - begin
        self.num_shared += len(ids) - num_idle
        self.num_cached -= num_idle
        self.num_referenced += num_idle
        self.num_available -= num_idle

    # ---- content ----------------------------------------------------------------------------------------------------

    def first_own(self, text: NumberedText) -> int:
        return text.num_numbered

    def register(self, text: NumberedText, first: int, ids: array[int], request_id: int) -> None:
        if first < text.num_numbered:
            self._index.insert(text, first, min(first + len(ids), text.num_numbered), ids)
        self._eviction.enter(ids)
        self._log.ids(Event.CACHE, request_id, ids)

    def entered(self, ids: array[int]) -> None:
        self._eviction.enter(ids)

    def unregister(self, text: NumberedText, places: Sequence[int], table: array[int]) -> None:
        ids = array("q", [table[place] for place in places])
        self._note_unregistered(ids)
        self._eviction.dropped(ids)
        for block_id in ids:
            self._index.remove(block_id)

    def is_shared(self, block_id: int) -> bool:
        return bool(self._num_others[block_id] > 0)

    # ---- giving back ------------------------------------------------------------------------------------------------

    def release(self, table: array[int], num_registered: int, text: NumberedText, request_id: int) -> None:
        self._index.number_own(text, num_registered, table)
        freed = view_of(table)
        idle = freed[:num_registered]
        if self.num_shared:
            is_shared = self._num_others_of[freed] > 0
            num_kept = int(np.count_nonzero(is_shared))
            if num_kept:
                self._num_others_of[freed[is_shared]] -= 1
                self.num_shared -= num_kept
                if num_kept == len(table):
                    return
                idle, freed = idle[~is_shared[:num_registered]], freed[~is_shared]
        num_idle = len(idle)
        self.num_referenced -= len(freed)
        self.num_available += len(freed)
        self.num_cached += num_idle
        self._log.ids(Event.FREE, request_id, array_of(freed[::-1]))
        self.free.push(array_of(freed[num_idle:]))
        if num_idle:
            self._num_others_of[idle] = -1
            self._eviction.rest(idle[::-1])

    # ---- for tests --------------------------------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        references: dict[int, int] = {}
        for table in tables:
            for block_id in table:
                references[block_id] = references.get(block_id, 0) + 1
        used = range(self.first_block_id, self.first_block_id + self._num_used)
        idle = [block_id for block_id in used if self._num_others[block_id] < 0]
        assert sorted([*self.free.items(), *idle, *references]) == list(used), "a block is lost, or in two states"
        num_others = [references.get(block_id, 1) - 1 for block_id in used if self._num_others[block_id] >= 0]
        assert num_others == [self._num_others[block_id] for block_id in used if self._num_others[block_id] >= 0]
        assert all(self._index.contents[block_id] for block_id in idle), "an idle block has no content"
        free = self.free.items()
        assert not any(self._index.contents[block_id] for block_id in free), "a free block still has content"
        counts = (self.num_cached, self.num_referenced, self.num_shared, self.num_available)
        counted = (len(idle), len(references), sum(num_others), self._num_blocks - len(references))
        assert counts == counted, f"counts are off: {counts}, not {counted}"


def _numbers(text: NumberedText, first: int, num_blocks: int, num_known: int) -> Ints:
    """Of its blocks from place `first` on; 0 where it is not known what will be there, or nobody else may have it."""
    numbers = np.zeros(num_blocks, dtype=np.int64)
    for begin, end, shift in text.pieces(first, min(first + num_blocks, num_known, text.num_numbered)):
        numbers[begin - first : end - first] = np.arange(begin + shift, end + shift)
    return numbers
