"""Ids for the blocks of prompts: those that a file names, and ids of their own for blocks that it does not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from core.errors import InputError
from traces.chaining import chained
from traces.readers.bad_rows import BadRow
from traces.readers.fields import named_ids
from traces.readers.source import Source
from traces.schema import IntArray, Ragged

MAX_NEW_BLOCKS = 1 << 20  # of one prompt: 16 M tokens in blocks of 16. A row of more is a typing mistake


class NewIds:
    """Ids that the file does not name. They are negative until `hash_column` has seen every id that it does name."""

    def __init__(self) -> None:
        self._num_taken = 0
        self._of_content: dict[Hashable, int] = {}

    def take(self, num: int) -> IntArray:
        """`num` ids that nobody else has."""
        first = -1 - self._num_taken
        self._num_taken += num
        return np.arange(first, first - num, -1, dtype=np.int64)

    def of_content(self, content: Hashable) -> int:
        """An id that stands for this content, whoever has it."""
        if content not in self._of_content:
            self._of_content[content] = int(self.take(1)[0])
        return self._of_content[content]

    def of_tokens(self, tokens: Sequence[int], block_tokens: int) -> IntArray:
        """An id for every block of the tokens, the last, partial one included; equal blocks have equal ids."""
        starts = range(0, len(tokens), block_tokens)
        ids = [self.of_content(tuple(tokens[start : start + block_tokens])) for start in starts]
        return np.array(ids, dtype=np.int64)

    def fill(self, key: str, ids: Sequence[int] | IntArray, num_prompt_tokens: int, block_tokens: int) -> IntArray:
        """`ids`, and ids of their own for the blocks of the prompt that they leave out.

        Raises BadRow, naming `key`, where those are implausibly many.
        """
        num_new = num_blocks(num_prompt_tokens, block_tokens) - len(ids)
        if num_new > MAX_NEW_BLOCKS:
            expected = f"at most {MAX_NEW_BLOCKS * block_tokens} tokens of which no block ids are given"
            raise BadRow("bad_value", key, num_prompt_tokens, expected)
        return np.concatenate((np.asarray(ids, dtype=np.int64), self.take(num_new)))

    def filled(self, source: Source, key: str, rows: Ragged, num_prompt_tokens: IntArray, block_tokens: int) -> Ragged:
        """`rows` of block ids, and ids of their own for those that are empty: nothing is known of these prompts.

        Raises InputError, naming the file and `key`, where those are implausibly many.
        """
        is_known = (rows.row_lengths > 0).tolist()
        if all(is_known):
            return rows
        try:
            return Ragged.of_arrays(
                [
                    rows.row(row) if is_known[row] else self.fill(key, (), num_tokens, block_tokens)
                    for row, num_tokens in enumerate(num_prompt_tokens.tolist())
                ]
            )
        except BadRow as bad:
            raise InputError(f"{source.path}, column {bad.describe()}") from bad


def num_blocks(num_tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens, the last, partial one included."""
    return -(-num_tokens // block_tokens)


def whole_block_ids(key: str, values: object, num_prompt_tokens: int, block_tokens: int) -> list[int]:
    """Ids of a format that may leave out the partial block at the end: one for every whole block, or for every block.

    Raises BadRow where there are fewer or more.
    """
    ids = named_ids(key, values)
    fewest, most = num_prompt_tokens // block_tokens, num_blocks(num_prompt_tokens, block_tokens)
    if not fewest <= len(ids) <= most:
        expected = f"{fewest} = floor({num_prompt_tokens} / {block_tokens}), or one more for the partial block"
        raise BadRow("hash_block_mismatch", key, f"{len(ids)} ids", expected)
    return ids


def hash_column(hash_ids: Ragged) -> Ragged:
    """The `hash_ids` of a trace: the file's ids as they are, new ids after them, all of them chained."""
    is_new = hash_ids.values < 0
    if not bool(is_new.any()):
        return chained(hash_ids)
    values = hash_ids.values.copy()
    if int(values.max()) >= 2**62:  # no room above the file's own
        _, values[~is_new] = np.unique(values[~is_new], return_inverse=True)
    values[is_new] = max(-1, int(values.max())) - values[is_new]
    return chained(Ragged(values, hash_ids.offsets))
