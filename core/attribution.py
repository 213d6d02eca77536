"""Which eviction cost which recompute: every prompt token that was cached once, and had to be computed again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from core.decision_log import NO_REQUEST, DecisionLog, packed
from core.int_column import MOST_NEW
from core.interfaces import BlockKey
from core.request import Sequence as RequestSequence

_KEYS_AT_ONCE = 32


@dataclass(slots=True)
class Charges:
    """Who paid for which evictions, as columns: a row for each request and time at which memory was taken for another.

    Blocks that were resident, but behind an evicted one, are charged to that eviction: no look-up reached them.
    """

    request_id: list[int] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    computed_ps: list[int] = field(default_factory=list)
    evicted_ps: list[int] = field(default_factory=list)
    evicted_step: list[int] = field(default_factory=list)
    evicted_for: list[int] = field(default_factory=list)  # the request that needed the memory


class _Takings:
    """Evictions that were made for one request at one time, as columns; evictions are numbered along the run.

    They are read while they grow, so they are arrays, but for the newest: a list takes one in a tenth of the time.
    """

    __slots__ = ("_first", "_new_first", "_new_rows", "_rows")

    def __init__(self) -> None:
        self._first = array("q")  # its first eviction
        self._rows = array("q")  # step, picoseconds, who has the memory, over and over
        self._new_first: list[int] = []
        self._new_rows: list[int] = []

    def add(self, first: int, step: int, time_ps: int, owner: int) -> None:
        self._new_first.append(first)
        self._new_rows += (step, time_ps, owner)
        if len(self._new_first) > MOST_NEW:
            self._pack()

    def add_all(self, rows: list[int]) -> None:
        """As many `add`, one after the other."""
        self._new_first += rows[::4]
        del rows[::4]
        self._new_rows += rows
        if len(self._new_first) > MOST_NEW:
            self._pack()

    def _pack(self) -> None:
        if self._new_first:
            self._first.frombytes(packed(self._new_first))
            self._rows.frombytes(packed(self._new_rows))
            self._new_first.clear()
            self._new_rows.clear()

    def first_evictions(self) -> array[int]:
        """That of each."""
        self._pack()
        return self._first

    def row(self, taking: int) -> array[int]:
        """Step, picoseconds, and who has the memory."""
        self._pack()
        return self._rows[3 * taking : 3 * taking + 3]


class Attribution(ABC):
    """Remembers what was evicted, and charges it when it is computed again. `now` tells picoseconds."""

    def __init__(self, log: DecisionLog, now: Callable[[], int], block_size: int) -> None:
        self.num_costly = 0  # evictions that cost somebody something
        self.charges = Charges()
        self._log = log
        self._now = now
        self._block_size = block_size
        self._num_evicted = 0
        self._is_costly = bytearray()  # by the number of the eviction, of those before some
        self._takings = _Takings()
        self._unowned = array("q")  # blocks that were evicted in the taking at hand

    def note_evicted(self, block_ids: Sequence[int]) -> None:
        """The evictions of these blocks are the next by number. For whom they were is told with the next taking."""
        self._num_evicted += len(block_ids)
        self._unowned.extend(block_ids)

    def taken_by(self, owner: int) -> None:
        """What was evicted since the last taking was evicted for this request."""
        if self._unowned:
            self._takings.add(self._num_evicted - len(self._unowned), self._log.step, self._now(), owner)
            del self._unowned[:]

    @property
    def awaits_owner(self) -> bool:
        """Has anything been evicted since the last taking?"""
        return bool(self._unowned)

    def taken_by_each(self, block_ids: Sequence[int], owners: Sequence[int]) -> None:
        """These requests took a block each, some of which were just evicted."""
        if len(owners) == 1:
            self.taken_by(owners[0])
            return
        step, now_ps, first = self._log.step, self._now(), self._num_evicted - len(self._unowned)
        if self._unowned == block_ids:
            for place, owner in enumerate(owners):
                self._takings.add(first + place, step, now_ps, owner)
        else:
            owner_of = dict(zip(block_ids, owners, strict=True))
            for number, block_id in enumerate(self._unowned, first):
                self._takings.add(number, step, now_ps, owner_of.get(block_id, NO_REQUEST))
        del self._unowned[:]

    def unowned(self) -> tuple[list[int], int]:
        """The blocks that were evicted since the last taking, and the number of the first of these evictions."""
        return self._unowned.tolist(), self._num_evicted - len(self._unowned)

    def taken_in_turn(self, takings: list[int]) -> None:
        """The blocks of `unowned` were taken one after the other: number of the eviction, step, picoseconds and who has
        the block, over and over.
        """
        self._takings.add_all(takings)
        del self._unowned[:]

    @abstractmethod
    def look_ahead(self, sequence: RequestSequence, num_computed: int) -> None:
        """Finds what the sequence has to compute, from here on, although it was cached once.

        Up to the first block that never was: what comes after it could not have been a hit in any case. A block that is
        resident, but behind one that was evicted, is lost by that eviction.
        """

    def charge(self, sequence: RequestSequence, num_computed: int) -> None:
        """The step at hand brings the sequence's KV up to so many tokens."""
        if not sequence.lost_ahead:
            return
        num_blocks = num_computed // self._block_size - sequence.first_lost
        charged = sequence.lost_ahead[:num_blocks]
        if not charged:
            return
        del sequence.lost_ahead[:num_blocks]
        sequence.first_lost += num_blocks
        request, takings = sequence.request, self._takings
        request.num_recomputed_evicted_tokens += len(charged) * self._block_size
        first_evictions = takings.first_evictions()
        is_costly = self._is_costly
        is_costly.extend(bytes(self._num_evicted - len(is_costly)))
        num_blocks_by_taking: dict[int, int] = {}
        taking, first, end, num_by_it = -1, 0, 0, 0  # the taking at hand, and its evictions
        for number in charged:
            if not first <= number < end:
                if num_by_it:
                    num_blocks_by_taking[taking] = num_blocks_by_taking.get(taking, 0) + num_by_it
                taking, num_by_it = bisect_right(first_evictions, number) - 1, 0
                first = first_evictions[taking]
                end = first_evictions[taking + 1] if taking + 1 < len(first_evictions) else self._num_evicted
            num_by_it += 1
            if not is_costly[number]:
                is_costly[number] = 1
                self.num_costly += 1
        num_blocks_by_taking[taking] = num_blocks_by_taking.get(taking, 0) + num_by_it
        for taking, num in num_blocks_by_taking.items():
            self._add(request.request_id, taking, num * self._block_size)

    def _add(self, request_id: int, taking: int, num_tokens: int) -> None:
        rows, takings = self.charges, self._takings
        step, time_ps, owner = takings.row(taking)
        rows.request_id.append(request_id)
        rows.num_tokens.append(num_tokens)
        rows.computed_ps.append(self._now())
        rows.evicted_ps.append(time_ps)
        rows.evicted_step.append(step)
        rows.evicted_for.append(owner)


class BlockAttribution(Attribution):
    """By block keys. `resident(key)` is None where no block holds that content.

    O(1) a block; about 150 bytes for every distinct key that was ever evicted, whether or not it comes back.
    """

    def __init__(
        self, resident: Callable[[BlockKey], object | None], log: DecisionLog, now: Callable[[], int], block_size: int
    ) -> None:
        super().__init__(log, now, block_size)
        self._resident = resident
        self._lost: dict[BlockKey | None, int] = {}  # to the number of its last eviction; also what came back since

    def evicted(self, keys: Sequence[BlockKey | None], block_ids: Sequence[int]) -> None:
        """Blocks lose content that was known by these keys (None: to nobody)."""
        first = self._num_evicted
        self._lost.update(zip(keys, range(first, first + len(keys)), strict=True))
        self.note_evicted(block_ids)

    def look_ahead(self, sequence: RequestSequence, num_computed: int) -> None:
        first, last = num_computed // self._block_size, (sequence.num_known - 1) // self._block_size
        if not sequence.request.num_preemptions:  # nobody had its own text before
            last = min(last, sequence.keys.num_shared)
        found: list[int] = []
        sequence.lost_ahead, sequence.first_lost = found, first
        cause, resident = None, self._resident
        for start in range(first, last, _KEYS_AT_ONCE):
            for key in sequence.keys.keys(start, min(start + _KEYS_AT_ONCE, last)):
                if resident(key) is None:
                    cause = self._lost.get(key)
                if cause is None:
                    return
                found.append(cause)
