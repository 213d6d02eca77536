"""A pool that tells blocks by their ids, for tables that are arrays: what such pools have in common, and are asked."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

import numpy as np

from core.decision_log import NO_REQUEST, DecisionLog, Event
from core.id_attribution import IdAttribution
from core.id_index import IdIndex
from core.id_stack import IdStack
from core.numbered_text import NO_TEXT, NumberedText
from core.pool import OutOfBlocksError, Pool

_FRESH_AT_ONCE: Final = 1024

IdlePart = tuple[int, int, int]
"""Places [begin, end) of a table whose blocks nobody references; before them the pool's own number for the part."""


class IdPool(Pool):
    """Free ids lie on a stack, at its bottom some that were never used; then come the victims of an eviction policy.

    Texts are given by numbers. What is known to stand in a text from place `first_own` on is content of its sequence
    alone, and has no number yet.
    """

    draws_ahead: ClassVar[bool] = False  # whether publications between two drawings do not matter to what is drawn

    def __init__(self, num_blocks: int, index: IdIndex, log: DecisionLog, first_block_id: int) -> None:
        super().__init__(num_blocks, first_block_id)
        self.index = index
        self.free = IdStack()
        self._num_blocks = num_blocks
        self._log = log
        self._num_used = 0  # ids that were ever on the stack

    @property
    def num_free(self) -> int:
        return self.num_available - self.num_cached

    def attribute_evictions(self, now: Callable[[], int], block_size: int) -> None:
        self.attribution = IdAttribution(self.index, self._log, now, block_size)

    # ---- taking -----------------------------------------------------------------------------------------------------

    def take(
        self, num_blocks: int, request_id: int, text: NumberedText = NO_TEXT, first: int = 0, num_known: int = 0
    ) -> array[int]:
        """So many blocks, at least one; evicts where nothing is free. Raises OutOfBlocksError if there are too few.

        They are for the blocks of this text from place `first` on, of which the first `num_known` are known: an
        eviction policy may ask.
        """
        taken = self._take(num_blocks, text, first, num_known)
        if self.attribution is not None:
            self.attribution.taken_by(request_id)
        self._log.ids(Event.ALLOC, request_id, taken)
        return taken

    def take_for(self, request_ids: Sequence[int]) -> array[int]:
        """A block for each of these requests, of which there are some."""
        taken = self._take(len(request_ids), NO_TEXT, 0, 0)
        if self.attribution is not None and self.attribution.awaits_owner:
            self.attribution.taken_by_each(taken, request_ids)
        self._log.ids_of(Event.ALLOC, request_ids, taken)
        return taken

    def _take(self, num_blocks: int, text: NumberedText, first: int, num_known: int) -> array[int]:
        taken, num_free = self.draw(num_blocks, text, first, num_known)
        num_victims = num_blocks - num_free
        if num_victims:
            self.num_cached -= num_victims
            self.num_evictions += num_victims
            self._log.ids(Event.EVICT, NO_REQUEST, taken[num_free:] if num_free else taken)
        self.num_referenced += num_blocks
        self.num_available -= num_blocks
        return taken

    def draw(
        self, num_blocks: int, text: NumberedText = NO_TEXT, first: int = 0, num_known: int = 0
    ) -> tuple[array[int], int]:
        """The next blocks, and how many of them were free: the others are victims, which lose their content.

        Whoever draws them counts and logs them. Raises OutOfBlocksError if there are too few.
        """
        num_free = self.free.length
        if num_blocks > num_free:
            if num_blocks > self.num_available:
                raise OutOfBlocksError(f"{num_blocks} blocks asked for, {self.num_available} available")
            if self._num_used < self._num_blocks:
                self._put_fresh_ones(num_blocks - num_free)
                num_free = self.free.length
            elif not num_free:
                return self._victims(num_blocks, text, first, num_known), 0
        if num_blocks <= num_free:
            return self.free.pop(num_blocks), num_blocks
        drawn = self.free.pop(num_free)
        drawn += self._victims(num_blocks - num_free, text, first + num_free, num_known)
        return drawn, num_free

    def draw_ahead(self, num_blocks: int) -> tuple[array[int], int]:
        """As `draw`, for the next so many drawings of a block each, or the first of them, if more depends on what is
        published until then. Victims among them may keep their content until the pool is told to `lose` them.
        """
        return self.draw(num_blocks)

    def draw_next(self, num_blocks: int) -> tuple[array[int], int]:
        """As `draw`, where what was drawn ahead comes to its end. Victims may keep their content as there."""
        return self.draw(num_blocks)

    def lose(self, victims: array[int]) -> None:
        """These victims of `draw_ahead` and `draw_next` are the next that are taken: now they lose their content."""

    def _put_fresh_ones(self, num_blocks: int) -> None:
        """So many that were never used, and some more, under those that are free, while there are any."""
        first = self.first_block_id + self._num_used
        num_fresh = min(max(num_blocks, _FRESH_AT_ONCE), self._num_blocks - self._num_used)
        self._num_used += num_fresh
        self.free.push_under(array("q", np.arange(first + num_fresh - 1, first - 1, -1).tobytes()))

    @abstractmethod
    def _victims(self, num_blocks: int, text: NumberedText, first: int, num_known: int) -> array[int]:
        """So many, of those that are cached, in the order in which they are evicted. They make room for that text."""

    # ---- hits -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def idle_parts(self, ids: array[int]) -> list[IdlePart]:
        """Which of these blocks, the beginning of a text, nobody references."""

    @abstractmethod
    def adopt(self, ids: array[int], idle_parts: list[IdlePart], request_id: int) -> None:
        """An admitted request adopts cached content, the beginning of its text, of which so much was idle until now:
        one more reference each.
        """

    # ---- content ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def first_own(self, text: NumberedText) -> int:
        """From which place on its content has no numbers yet."""

    @abstractmethod
    def register(self, text: NumberedText, first: int, ids: array[int], request_id: int) -> None:
        """Publishes the content of these blocks, referenced full ones, from place `first` of the text on."""

    def entered(self, ids: array[int]) -> None:
        """These blocks of decodes, referenced full ones, were published: what has a number is in the index."""

    @abstractmethod
    def unregister(self, text: NumberedText, places: Sequence[int], table: array[int]) -> None:
        """Takes back the publication of referenced blocks, at least one, whose content was never computed."""

    @abstractmethod
    def is_shared(self, block_id: int) -> bool:
        """Has this referenced block more than one reference?"""

    # ---- giving back ------------------------------------------------------------------------------------------------

    def keep_own(self, text: NumberedText, num_registered: int, table: array[int]) -> None:
        """Its sequence stops and comes back, and will ask for what is its own of these first blocks, too."""

    @abstractmethod
    def release(self, table: array[int], num_registered: int, text: NumberedText, request_id: int) -> None:
        """Drops one reference to each block of the table, leaf to root. Its first `num_registered` have content: that
        of the text, as far as anybody may ask for it.
        """

    def _note_unregistered(self, ids: array[int]) -> None:
        self._log.ids(Event.EVICT, NO_REQUEST, ids)

    # ---- for tests --------------------------------------------------------------------------------------------------

    @abstractmethod
    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Proves that the states partition the pool and that counts equal the block tables. O(pool)."""
