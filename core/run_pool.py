"""The block pool under LRU, kept as runs: what a table leaves behind is one object, whatever its length.

Taking, releasing, hitting and evicting blocks cost slices of arrays, not a visit to each block. Decisions are those of
`BlockPool` under `policies.eviction.lru.LRU`, block by block; a property test compares them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from core.decision_log import NO_REQUEST, DecisionLog, Event
from core.interfaces import Policy
from core.numbered_text import NumberedText
from core.pool import OutOfBlocksError, Pool
from core.run_attribution import RunAttribution
from core.run_index import RunIndex

_FEW_EMPTY_RUNS = 64
_FEW_BLOCKS = 32


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


IdlePart = tuple[IdleRun, int, int]


class RunPool(Pool):
    """As `BlockPool`, with block ids for block objects. A block is FREE, in an idle run, or REFERENCED.

    Idle runs lie in order of release, and of the first its leaf is the next victim.
    """

    def __init__(self, num_blocks: int, log: DecisionLog, first_block_id: int = 0) -> None:
        super().__init__(num_blocks, first_block_id)
        self.index = RunIndex()
        self._num_blocks = num_blocks
        self.free = array("q")  # stack: the last is taken first
        self._log = log
        self._num_used = 0  # ids that were ever taken
        self._order: deque[IdleRun] = deque()
        self._num_empty = 0  # runs in it without an idle block
        self._num_runs = 0
        self._runs: dict[int, IdleRun] = {}  # those in order, by number
        # By id: number of its last run, if any. Zeros cost nothing until they are touched: pools may be large and idle.
        self._run_of_each = np.zeros(first_block_id + num_blocks, dtype=np.int64)
        self._run_of = self._run_of_each.data  # where one is looked up
        self._sharers: dict[int, int] = {}  # references beyond the first, of the blocks that have any
        self._most_shared = 0  # those stand at places below this in their tables

    @property
    def num_free(self) -> int:
        return self.num_available - self.num_cached

    def attribute_evictions(self, now: Callable[[], int], block_size: int) -> None:
        self.attribution = RunAttribution(self.index, self._log, now, block_size)

    # ---- taking -----------------------------------------------------------------------------------------------------

    def take(self, num_blocks: int, request_id: int) -> array[int]:
        """So many blocks, at least one; evicts where nothing is free. Raises OutOfBlocksError if there are too few."""
        taken = self._take(num_blocks)
        if self.attribution is not None:
            self.attribution.taken_by(request_id)
        self._log.ids(Event.ALLOC, request_id, taken)
        return taken

    def take_for(self, request_ids: Sequence[int]) -> array[int]:
        """A block for each of these requests, of which there are some."""
        taken = self._take(len(request_ids))
        if self.attribution is not None and self.attribution.awaits_owner:
            self.attribution.taken_by_each(taken, request_ids)
        self._log.ids_of(Event.ALLOC, request_ids, taken)
        return taken

    def _take(self, num_blocks: int) -> array[int]:
        taken, num_free = self.draw(num_blocks)
        num_victims = num_blocks - num_free
        if num_victims:
            self.num_cached -= num_victims
            self.num_evictions += num_victims
            self._log.ids(Event.EVICT, NO_REQUEST, taken[num_free:] if num_free else taken)
        self.num_referenced += num_blocks
        self.num_available -= num_blocks
        return taken

    def draw(self, num_blocks: int) -> tuple[array[int], int]:
        """The next blocks, and how many of them were free: the others are victims, which lose their content.

        Whoever draws them counts and logs them. Raises OutOfBlocksError if there are too few.
        """
        free = self.free
        if num_blocks <= len(free):
            drawn = free[: -num_blocks - 1 : -1]
            del free[len(free) - num_blocks :]
            return drawn, num_blocks
        if num_blocks > self.num_available:
            raise OutOfBlocksError(f"{num_blocks} blocks asked for, {self.num_available} available")
        if not free and self._num_used == self._num_blocks:
            return self._victims(num_blocks), 0
        drawn = free[::-1]
        num_fresh = min(num_blocks - len(drawn), self._num_blocks - self._num_used)
        del free[:]
        first = self.first_block_id + self._num_used
        drawn.extend(range(first, first + num_fresh))
        self._num_used += num_fresh
        num_free = len(drawn)
        if num_free < num_blocks:
            drawn += self._victims(num_blocks - num_free)
        return drawn, num_free

    def _victims(self, num_blocks: int) -> array[int]:
        """So many, of those that are cached, in the order in which they are evicted."""
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
        text, index = run.text, self.index
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
        """Which of these blocks, the beginning of a text, nobody references: intervals, and whose part each is."""
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
            found.append((run, place, end))
            place = end
        return found

    def adopt(self, ids: array[int], idle_parts: list[IdlePart], request_id: int) -> None:
        """An admitted request adopts cached content, the beginning of its text, of which so much was idle until now:
        one more reference each.
        """
        self._log.ids(Event.TOUCH, request_id, ids)
        idle = referenced_from = 0
        for run, begin, end in idle_parts:
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

    # ---- giving back ------------------------------------------------------------------------------------------------

    def release(self, table: array[int], num_registered: int, text: NumberedText, request_id: int) -> None:
        """Drops one reference to each block of the table, leaf to root. Its first `num_registered` have content: that
        of the text, as far as anybody may ask for it.
        """
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
        self.free += freed[num_idle:]
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
            self._run_of_each[np.frombuffer(ids, dtype=np.int64)[:num_findable]] = run.number
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
        """Has this referenced block more than one reference?"""
        return block_id in self._sharers

    def note_unregistered(self, block_id: int) -> None:
        """The publication of a referenced block whose content was never computed was taken back."""
        self._log.ids(Event.EVICT, NO_REQUEST, array("q", (block_id,)))

    # ---- for tests --------------------------------------------------------------------------------------------------

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Proves that the states partition the pool and that counts equal the block tables. O(pool)."""
        references: dict[int, int] = {}
        for table in tables:
            for block_id in table:
                references[block_id] = references.get(block_id, 0) + 1
        idle = [block_id for run in self._order for begin, end in run.parts for block_id in run.ids[begin:end]]
        used = range(self.first_block_id, self.first_block_id + self._num_used)
        assert sorted([*self.free, *idle, *references]) == list(used), "a block is lost, or in two states"
        sharers = {block_id: number - 1 for block_id, number in references.items() if number > 1}
        assert sharers == self._sharers, "wrong reference counts"
        counts = (self.num_cached, self.num_referenced, self.num_shared, self.num_available, self._num_empty)
        num_empty = sum(not run.parts for run in self._order)
        num_available = self._num_blocks - len(references)
        counted = (len(idle), len(references), sum(sharers.values()), num_available, num_empty)
        assert counts == counted, f"counts are off: {counts}, not {counted}"
