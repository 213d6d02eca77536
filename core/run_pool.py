"""The block pool under LRU, kept as runs: what a table leaves behind is one object, whatever its length.

Taking, releasing, hitting and evicting blocks cost slices of arrays, not a visit to each block. Decisions are those of
`BlockPool` under `policies.eviction.lru.LRU`, block by block; a property test compares them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from core.decision_log import DecisionLog, Event
from core.id_pool import IdlePart, IdPool
from core.interfaces import Policy
from core.numbered_text import NumberedText
from core.run_index import RunIndex

_FEW_EMPTY_RUNS = 64
_FEW_BLOCKS = 8


def keeps_order_of_release(policy: Policy) -> bool:
    """Whether runs can stand for this eviction policy. A subclass, which may have an order of its own, says so anew."""
    return bool(vars(type(policy)).get("evicts_in_order_of_release", False))


class IdleRun:
    """The registered beginning of a released table, root first: `ids[n]` holds block n of the text.

    Idle are the intervals [begin, end) of `parts`, from the root on. Hits take from the root's end and evictions from
    the leaf's, so there is one, as a rule.
    """

    __slots__ = ("ids", "number", "parts", "text")

    def __init__(self, number: int, ids: array[int], text: NumberedText, parts: list[tuple[int, int]]) -> None:
        self.number = number
        self.ids = ids
        self.text = text
        self.parts = parts

    def part_with(self, place: int) -> int:
        """Which part has this block; -1: it is not idle here."""
        for number, (begin, end) in enumerate(self.parts):
            if begin <= place < end:
                return number
        return -1

    def cut(self, begin: int, end: int) -> None:
        """These blocks, of one part, are idle no more."""
        number = self.part_with(begin)
        first, last = self.parts[number]
        self.parts[number : number + 1] = [part for part in ((first, begin), (end, last)) if part[0] < part[1]]


class RunPool(IdPool):
    """As `BlockPool`, with block ids for block objects. A block is FREE, in an idle run, or REFERENCED.

    Idle runs lie in order of release, and of the first its leaf is the next victim.
    """

    draws_ahead = True

    def __init__(self, num_blocks: int, log: DecisionLog, first_block_id: int = 0) -> None:
        index = self._index = RunIndex()
        super().__init__(num_blocks, index, log, first_block_id)
        self._order: deque[IdleRun] = deque()
        self._num_empty = 0  # runs in it without an idle block
        self._num_runs = 0
        self._runs: dict[int, IdleRun] = {}  # those in order, by number
        # By id: number of its last run, if any. Zeros cost nothing until they are touched: pools may be large and idle.
        self._run_of_each = np.zeros(first_block_id + num_blocks, dtype=np.int64)
        self._run_of = self._run_of_each.data  # where one is looked up
        self._sharers: dict[int, int] = {}  # references beyond the first, of the blocks that have any
        self._most_shared = 0  # those stand at places below this in their tables

    # ---- taking -----------------------------------------------------------------------------------------------------

    def _victims(self, num_blocks: int, text: NumberedText, first: int, num_known: int) -> array[int]:
        order = self._order
        victims: array[int] | None = None
        num_left = num_blocks
        while num_left:
            run = order[0]
            if not run.parts:
                order.popleft()
                del self._runs[run.number]
                self._num_empty -= 1
                continue
            begin, end = run.parts[-1]
            start = end - num_left
            if start > begin:
                run.parts[-1] = (begin, start)
            else:
                start = begin
                run.parts.pop()
                self._num_empty += not run.parts
            ids = run.ids[start:end]
            ids.reverse()
            if start < run.text.num_numbered:
                self._forget(run, start, end, ids)
            if victims is None:
                victims = ids
            else:
                victims += ids
            num_left -= end - start
        assert victims is not None
        return victims

    def _forget(self, run: IdleRun, first: int, last: int, victims: array[int]) -> None:
        """These blocks of a run, from the leaf on, lose their content, as far as it may be asked for again."""
        text, index = run.text, self._index
        if last > text.num_shared:
            for place in range(min(last, text.num_numbered) - 1, max(first, text.num_shared) - 1, -1):
                if index.holds(text.number(place), run.ids[place]):
                    index.forget(text, place, place + 1, run.ids)
                    if self.attribution is not None:
                        self.attribution.note_evicted(run.ids[place : place + 1])
            victims = victims[last - text.num_shared :]
            last = text.num_shared
        if first < last:
            index.forget(text, first, last, run.ids)
            if self.attribution is not None:
                self.attribution.note_evicted(victims)

    # ---- hits -------------------------------------------------------------------------------------------------------

    def idle_parts(self, ids: array[int]) -> list[IdlePart]:
        """Of each part its run, by number."""
        found: list[IdlePart] = []
        runs, run_of, place, num_blocks = self._runs, self._run_of, 0, len(ids)
        while place < num_blocks:
            run = runs.get(run_of[ids[place]])
            number = -1
            # What a run tells of a block that was evicted from it, or taken, since it was released is out of date.
            if run is not None and place < len(run.ids) and run.ids[place] == ids[place]:
                number = run.part_with(place)
            if run is None or number < 0:
                place += 1
                continue
            end = min(run.parts[number][1], num_blocks)
            if run.ids[place:end] != ids[place:end]:
                end = next(n for n in range(place, end) if run.ids[n] != ids[n])
            found.append((run.number, place, end))
            place = end
        return found

    def adopt(self, ids: array[int], idle_parts: list[IdlePart], request_id: int) -> None:
        self._log.ids(Event.TOUCH, request_id, ids)
        idle = referenced_from = 0
        for number, begin, end in idle_parts:
            run = self._runs[number]
            self._share(ids, referenced_from, begin)
            run.cut(begin, end)
            if not run.parts:
                self._note_empty()
            idle += end - begin
            referenced_from = end
        self._share(ids, referenced_from, len(ids))
        self.num_cached -= idle
        self.num_referenced += idle
        self.num_available -= idle

    def _share(self, ids: array[int], begin: int, end: int) -> None:
        if begin < end:
            sharers = self._sharers
            for block_id in ids[begin:end]:
                sharers[block_id] = sharers.get(block_id, 0) + 1
            self.num_shared += end - begin
            self._most_shared = max(self._most_shared, end)

    def _note_empty(self) -> None:
        """A run without an idle block stays where it is until it comes to the front, or there are too many of them."""
        self._num_empty += 1
        if self._num_empty > len(self._order) // 2 + _FEW_EMPTY_RUNS:
            self._order = deque(run for run in self._order if run.parts)
            self._runs = {run.number: run for run in self._order}
            self._num_empty = 0

    # ---- content ----------------------------------------------------------------------------------------------------

    def first_own(self, text: NumberedText) -> int:
        return text.num_shared

    def register(self, text: NumberedText, first: int, ids: array[int], request_id: int) -> None:
        if first < text.num_shared:
            self._index.insert(text, first, min(first + len(ids), text.num_shared), ids)
        self._log.ids(Event.CACHE, request_id, ids)

    def unregister(self, text: NumberedText, places: Sequence[int], table: array[int]) -> None:
        for place in places:
            if place < text.num_shared:
                self._index.remove(text.number(place), table[place])
        self._note_unregistered(array("q", [table[place] for place in places]))

    def keep_own(self, text: NumberedText, num_registered: int, table: array[int]) -> None:
        self._index.insert_own(text, num_registered, table)

    # ---- giving back ------------------------------------------------------------------------------------------------

    def release(self, table: array[int], num_registered: int, text: NumberedText, request_id: int) -> None:
        kept = self._dereference(table) if self.num_shared else []
        num_kept = len(kept)
        freed, parts, num_idle = table, [(0, num_registered)], num_registered
        if num_kept and kept[-1] == num_kept - 1:  # just its first ones
            freed, parts = table[num_kept:], [(num_kept, num_registered)]
            num_idle = max(0, num_registered - num_kept)
        elif num_kept:
            gaps = [(first + 1, last) for first, last in pairwise((-1, *kept, len(table))) if first + 1 < last]
            freed = array("q")
            for begin, end in gaps:
                freed += table[begin:end]
            parts = [(begin, min(end, num_registered)) for begin, end in gaps if begin < num_registered]
            num_idle = sum([end - begin for begin, end in parts])
        if not freed:
            return
        self.num_referenced -= len(freed)
        self.num_available += len(freed)
        self.num_cached += num_idle
        self._log.ids(Event.FREE, request_id, freed[::-1])
        self.free.push(freed[num_idle:])
        if num_idle:
            self._num_runs += 1
            run = IdleRun(self._num_runs, table[:num_registered], text, parts)
            self._order.append(run)
            self._runs[run.number] = run
            self._note_run(run, min(num_registered, text.num_numbered))

    def _note_run(self, run: IdleRun, num_findable: int) -> None:
        """The last run of its first blocks is this."""
        ids, run_of = run.ids, self._run_of
        if num_findable > _FEW_BLOCKS:
            self._run_of_each[np.frombuffer(ids, np.int64, num_findable)] = run.number
            return
        for place in range(num_findable):  # done before an array operation has begun
            run_of[ids[place]] = run.number

    def _dereference(self, table: array[int]) -> list[int]:
        """Drops the references beyond the first. Returns the places of the blocks that had any."""
        sharers, kept = self._sharers, []
        for place, block_id in enumerate(table[: self._most_shared]):
            if block_id in sharers:
                kept.append(place)
                if sharers[block_id] == 1:
                    del sharers[block_id]
                else:
                    sharers[block_id] -= 1
        self.num_shared -= len(kept)
        if not sharers:
            self._most_shared = 0
        return kept

    def is_shared(self, block_id: int) -> bool:
        return block_id in self._sharers

    # ---- for tests --------------------------------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        references: dict[int, int] = {}
        for table in tables:
            for block_id in table:
                references[block_id] = references.get(block_id, 0) + 1
        idle = [block_id for run in self._order for begin, end in run.parts for block_id in run.ids[begin:end]]
        used = range(self.first_block_id, self.first_block_id + self._num_used)
        assert sorted([*self.free.items(), *idle, *references]) == list(used), "a block is lost, or in two states"
        sharers = {block_id: number - 1 for block_id, number in references.items() if number > 1}
        assert sharers == self._sharers, "wrong reference counts"
        counts = (self.num_cached, self.num_referenced, self.num_shared, self.num_available, self._num_empty)
        num_empty = sum(not run.parts for run in self._order)
        num_available = self._num_blocks - len(references)
        counted = (len(idle), len(references), sum(sharers.values()), num_available, num_empty)
        assert counts == counted, f"counts are off: {counts}, not {counted}"
