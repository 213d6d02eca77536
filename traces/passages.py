"""Passages of the text that generated traces take their prompts from (samples/corpus.txt)."""

from __future__ import annotations

import random
from typing import NamedTuple

from core.errors import InputError

NUM_POSITIONS = 60_000  # the text has 55,138 words; SmolLM2's tokeniser makes 87,496 tokens of it


class Segment(NamedTuple):
    """A passage of the text."""

    start_token: int
    num_tokens: int


class Passages:
    """Hands out passages of the text, no two of which start at the same token."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._taken: set[int] = set()

    def take(self, num_tokens: int, followed_by: int = 0) -> Segment:
        """A passage with at least `followed_by` tokens of text after it.

        Raises InputError if the text has no place for it.
        """
        num_starts = NUM_POSITIONS - num_tokens - followed_by
        if len(self._taken) * 2 > num_starts:
            raise InputError(
                f"no place in the text for another passage of {num_tokens} tokens; expected fewer requests"
            )
        start = self._rng.randrange(num_starts)
        while start in self._taken:
            start = self._rng.randrange(num_starts)
        self._taken.add(start)
        return Segment(start, num_tokens)
