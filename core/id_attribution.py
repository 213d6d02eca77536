"""Which eviction cost which recompute, where a pool tells blocks by their ids."""

from __future__ import annotations

from collections.abc import Callable

from core.attribution import Attribution
from core.decision_log import DecisionLog
from core.id_index import IdIndex
from core.request import Sequence


class IdAttribution(Attribution):
    """By the index, which remembers how its contents were lost: the losses that it counts are these evictions."""

    def __init__(self, index: IdIndex, log: DecisionLog, now: Callable[[], int], block_size: int) -> None:
        super().__init__(log, now, block_size)
        self._index = index

    def look_ahead(self, sequence: Sequence, num_computed: int) -> None:
        text, first = sequence.text, num_computed // self._block_size
        last = (sequence.num_known - 1) // self._block_size
        sequence.lost_ahead = [] if text is None else self._index.losses(text, first, last)
        sequence.first_lost = first
