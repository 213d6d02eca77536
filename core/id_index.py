"""The prefix index of a pool that tells blocks by their ids: which of them hold which content, by numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

from core.content import BlockKeys
from core.numbered_text import ContentNumbers, NumberedText


class IdIndex(ABC):
    """As `HashIndex`, of ids, by the numbers of contents."""

    numbers: ContentNumbers

    @abstractmethod
    def text(self, keys: BlockKeys) -> NumberedText:
        """These contents by their numbers, which they get where they have none."""

    @abstractmethod
    def leading(self, text: NumberedText, num_blocks: int) -> array[int]:
        """Blocks of the longest run of its content, from its first block on, and no more than so many, that is held."""

    def num_leading(self, keys: BlockKeys, num_blocks: int) -> int:
        """As many as `leading` finds of a text that need not come in: it gets no numbers."""
        text = self.numbers.known(keys, num_blocks)
        return len(self.leading(text, text.num_numbered))

    @abstractmethod
    def insert(self, text: NumberedText, first: int, last: int, ids: array[int]) -> None:
        """Its blocks from place `first` up to, not including, `last`, which have numbers, are these."""

    @abstractmethod
    def losses(self, text: NumberedText, first: int, last: int) -> list[int]:
        """By which eviction its blocks from place `first` up to, not including, `last` are not found, up to the first
        of which there was none. One that is held, but behind a lost one, is lost by that.
        """
