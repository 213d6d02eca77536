"""Where the tokens of a step stand: arithmetic on the rows of its batch, the same for every KV group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows in packed order, those of one token (decodes) first; int64 arrays.

    num_kv_tokens, num_blocks: [num_rows], with the step's tokens; blocks that hold them
    positions, owner, column, offset: [num_tokens], of every token: its position, row, place in the row's table, and
    place in that block
    query_start: [num_rows - num_decodes + 1], of the chunks, counted from the first chunk's token
    sample_rows: tokens whose logits are wanted
    """

    num_decodes: int
    num_kv_tokens: np.ndarray
    num_blocks: np.ndarray
    positions: np.ndarray
    owner: np.ndarray
    column: np.ndarray
    offset: np.ndarray
    query_start: np.ndarray
    sample_rows: np.ndarray

    @classmethod
    def of(cls, num_new: np.ndarray, start: np.ndarray, sampled: np.ndarray, block_size: int) -> PackedRows:
        """num_new, start: int64 [num_rows], new tokens and their first position; sampled: rows whose last logits are
        wanted, in the order in which they are.
        """
        num_decodes = int(np.count_nonzero(num_new == 1))
        num_kv_tokens = start + num_new
        row_start = np.zeros(len(num_new) + 1, dtype=np.int64)
        np.cumsum(num_new, out=row_start[1:])
        owner, positions = row_start[:-1], start  # where every row is of one token
        if num_decodes < len(num_new):
            owner = np.repeat(np.arange(len(num_new)), num_new)
            positions = np.arange(row_start[-1]) - (row_start[:-1] - start)[owner]
        column, offset = np.divmod(positions, block_size)
        return cls(
            num_decodes,
            num_kv_tokens,
            (num_kv_tokens - 1) // block_size + 1,
            positions,
            owner,
            column,
            offset,
            row_start[num_decodes:] - row_start[num_decodes],
            row_start[1:][sampled] - 1,
        )

    def a_token_further(self, block_size: int) -> PackedRows:
        """Of rows of one token each: those that follow."""
        positions = self.num_kv_tokens
        column, offset = np.divmod(positions, block_size)
        return PackedRows(
            self.num_decodes,
            positions + 1,
            column + 1,
            positions,
            self.owner,
            column,
            offset,
            self.query_start,
            self.sample_rows,
        )

    @property
    def num_decode_columns(self) -> int:
        """Of the decodes' block tables."""
        return int(self.num_blocks[: self.num_decodes].max(initial=0))

    @property
    def num_prefill_columns(self) -> int:
        return int(self.num_blocks[self.num_decodes :].max(initial=0))
