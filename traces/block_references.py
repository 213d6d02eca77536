"""The stream of block references that a trace's prompts make: what a cache sees, without times and outputs."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from core.errors import InputError
from traces.ragged import IntArray
from traces.schema import Trace

DEFAULT_BLOCK_TOKENS = 16  # where the trace does not bring its own


@dataclass(frozen=True, eq=False)
class BlockReferences:
    """Blocks by number, in order of first appearance; request `i` refers to `blocks[offsets[i]:offsets[i + 1]]`.

    A block stands for its tokens *and all before them*. The last, partial block of a prompt is a block like any other.
    """

    trace_name: str
    block_tokens: int
    blocks: IntArray  # [num_references]
    offsets: IntArray  # [num_requests + 1]
    num_tokens: IntArray  # that each reference covers, [num_references]
    arrival_ps: IntArray  # [num_requests]
    category: IntArray  # [num_requests]; the trace's `kind`, 0 where it tells none apart
    flops: npt.NDArray[np.float64] | None = None  # that a hit of each reference saves, where a model was named

    @property
    def num_references(self) -> int:
        return len(self.blocks)

    @property
    def num_unique(self) -> int:
        return int(self.blocks.max()) + 1 if len(self.blocks) else 0

    @property
    def num_blocks(self) -> IntArray:
        """Blocks of each request, [num_requests]."""
        return np.diff(self.offsets)

    def rows(self) -> list[list[int]]:
        """The blocks of each request, first to last."""
        blocks, offsets = self.blocks.tolist(), self.offsets.tolist()
        return [blocks[first:last] for first, last in pairwise(offsets)]

    def parents(self) -> IntArray:
        """The block before each block, [num_unique]; -1: it begins a prompt.

        Raises InputError if a block follows two different ones: then the ids are no prefix hashes.
        """
        before = np.concatenate(([-1], self.blocks[:-1]))
        before[self.offsets[:-1][self.num_blocks > 0]] = -1
        parents = np.full(self.num_unique, -1, dtype=np.int64)
        parents[self.blocks[::-1]] = before[::-1]  # the first mention is written last
        clash = parents[self.blocks] != before
        if clash.any():
            place = int(np.argmax(clash))
            row = int(np.searchsorted(self.offsets, place, side="right")) - 1
            raise InputError(
                f"trace {self.trace_name!r}, row {row}: its block {place - int(self.offsets[row])} followed another"
                " block before; expected an id to stand for a block and all blocks before it (`--mode plain` needs"
                " no prefixes)"
            )
        return parents


def block_references(trace: Trace, block_tokens: int | None = None) -> BlockReferences:
    """The references of a trace's prompts. `block_tokens`: for a trace that points at text instead of naming blocks.

    Raises InputError for a trace that does not tell which prompts share a prefix, or one whose blocks are of another
    size than the one asked for.
    """
    if trace.hash_ids is not None and trace.hash_block_tokens is not None:
        if block_tokens not in (None, trace.hash_block_tokens):
            raise InputError(
                f"trace {trace.name!r} names blocks of {trace.hash_block_tokens} tokens; expected no other block size"
            )
        block_tokens, offsets = trace.hash_block_tokens, trace.hash_ids.offsets
        blocks = _numbered(trace.hash_ids.values, _row_values(trace.hash_salt, offsets))
    elif trace.prompt_segments is not None:
        block_tokens = DEFAULT_BLOCK_TOKENS if block_tokens is None else block_tokens
        blocks, offsets = _blocks_of_text(trace, block_tokens)
    else:
        raise InputError(
            f"trace {trace.name!r} does not tell which prompts share a prefix; expected hash_ids or prompt segments"
        )
    place = np.arange(len(blocks)) - np.repeat(offsets[:-1], np.diff(offsets))
    num_left = np.repeat(trace.num_prompt_tokens, np.diff(offsets)) - place * block_tokens
    num_tokens = np.minimum(block_tokens, num_left)
    kind = np.zeros_like(trace.arrival_ps) if trace.kind is None else trace.kind
    return BlockReferences(trace.name, block_tokens, blocks, offsets, num_tokens, trace.arrival_ps, kind)


def _row_values(column: IntArray | None, offsets: IntArray) -> IntArray:
    """A request's value for each of its blocks; 0 where the trace has none."""
    return np.zeros(offsets[-1], dtype=np.int64) if column is None else np.repeat(column, np.diff(offsets))


def _numbered(ids: IntArray, salts: IntArray) -> IntArray:
    """Numbers for (salt, id) by first appearance."""
    if salts.any():
        _, ids = np.unique(np.column_stack((salts, ids)), axis=0, return_inverse=True)
    _, first_seen, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(first_seen), dtype=np.int64)
    rank[np.argsort(first_seen)] = np.arange(len(first_seen))
    numbered: IntArray = rank[inverse.reshape(-1)]
    return numbered


def _blocks_of_text(trace: Trace, block_tokens: int) -> tuple[IntArray, IntArray]:
    """Numbers and offsets for prompts given as segments of a text: equal places of the text, equal block."""
    assert trace.prompt_segments is not None
    salts = [0] * trace.num_requests if trace.hash_salt is None else trace.hash_salt.tolist()
    number: dict[tuple[object, bytes], int] = {}
    blocks, offsets = [], [0]
    for row in range(trace.num_requests):
        places = _places(trace.prompt_segments.row(row))
        block: object = ("salt", salts[row])  # no block's number: prompts of different salts part at their roots
        for start in range(0, len(places), block_tokens):
            blocks.append(number.setdefault((block, places[start : start + block_tokens].tobytes()), len(number)))
            block = blocks[-1]
        offsets.append(len(blocks))
    return np.array(blocks, dtype=np.int64), np.array(offsets, dtype=np.int64)


def _places(segments: IntArray) -> IntArray:
    """Where in the text each token of a prompt stands."""
    starts, lengths = segments.T
    ends = np.cumsum(lengths)
    places: IntArray = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return places


class ReferencesToCome:
    """Tells clairvoyant policies when a block is referenced next: a `core.interfaces.Future`.

    `num_past` counts the references that lie behind, and only grows.
    """

    def __init__(self, references: BlockReferences) -> None:
        self._blocks = references.blocks
        self.num_past = 0

    def next_use(self, key: Hashable) -> int | None:
        """The number of the block's next reference; None: never. Amortised O(1) over the replay."""
        to_come = self._uses[key]
        while to_come and to_come[-1] < self.num_past:
            to_come.pop()
        return to_come[-1] if to_come else None

    @cached_property
    def _uses(self) -> dict[Hashable, list[int]]:
        """The references of each block, last first; made only if somebody asks."""
        uses: dict[Hashable, list[int]] = {}
        for number in range(len(self._blocks) - 1, -1, -1):
            uses.setdefault(int(self._blocks[number]), []).append(number)
        return uses
