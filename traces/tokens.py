"""Token ids for prompts that a trace gives as block hashes or as segments of a text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from core.errors import InputError
from traces.schema import IntArray, Ragged, Trace

_MAX_IDS = 2**32  # more than any trace has; a fixed number, so that tokens do not depend on the trace's length


class _Tree(NamedTuple):
    """The hash ids of a trace as a tree. Ranks number the ids by first appearance, so `limit` changes no rank."""

    sorted_ids: IntArray  # [num_ids]
    rank: IntArray  # of sorted_ids, [num_ids]
    parent_rank: IntArray  # of the id before, by rank; -1: starts a prompt
    ordinal: IntArray  # among the ids with the same parent, by rank


class HashTokens:
    """Deterministic prompt tokens for a trace with hash ids: same id, same tokens; different id, different tokens.

    The first token of a block counts the ids that follow the same parent, so two prompts differ from the very token at
    which their ids do. The tokens after it spell the id's number in base vocabulary, then run pseudo-randomly. (A block
    too short to spell the number still differs from its siblings, hence as a prefix.)
    """

    def __init__(self, trace: Trace, vocab_size: int, first_id: int = 0) -> None:
        """Tokens are drawn from `first_id` to `vocab_size - 1`.

        Raises InputError if the trace has no hash ids, if an id follows two different ids, or if more ids follow one
        parent than the vocabulary can tell apart.
        """
        if trace.hash_ids is None or trace.hash_block_tokens is None:
            raise InputError(f"trace {trace.name!r} has no hash ids; expected some to make tokens from")
        self._trace = trace
        self._hash_ids = trace.hash_ids
        self._block_tokens = trace.hash_block_tokens
        self._first_id = first_id
        self._num_usable = vocab_size - first_id
        self._tree = _tree(trace.name, trace.hash_ids)
        fan_out = int(self._tree.ordinal.max()) + 1
        if self._num_usable < max(2, fan_out):
            raise InputError(
                f"trace {trace.name!r}: {fan_out} different blocks follow the same prefix; expected a vocabulary of at"
                f" least {max(2, fan_out)} tokens to tell them apart, this one has {self._num_usable}"
            )
        self._num_digits = _num_digits(_MAX_IDS, self._num_usable)

    def prompt_tokens(self, row: int) -> IntArray:
        """The prompt of one request, int64 `[num_prompt_tokens]`."""
        tree = self._tree
        ranks = tree.rank[np.searchsorted(tree.sorted_ids, self._hash_ids.row(row))]
        positions = np.arange(self._block_tokens)
        tokens = _scramble(ranks[:, None] * self._block_tokens + positions, self._num_usable)
        tokens[:, 0] = (tree.ordinal[ranks] + _scramble(tree.parent_rank[ranks], self._num_usable)) % self._num_usable
        for digit in range(min(self._num_digits, self._block_tokens - 1)):
            tokens[:, 1 + digit] = ranks // self._num_usable**digit % self._num_usable
        prompt: IntArray = self._first_id + tokens.reshape(-1)[: self._trace.num_prompt_tokens[row]]
        return prompt


def segment_tokens(corpus_tokens: IntArray, segments: IntArray) -> IntArray:
    """The tokens of segments `[num_segments, 2]` (start, number of tokens) of a tokenised text, int64 `[num_tokens]`.

    Raises InputError if a segment runs beyond the text.
    """
    ends = segments[:, 0] + segments[:, 1]
    if (ends > len(corpus_tokens)).any():
        start, length = segments[int(np.argmax(ends))]
        raise InputError(f"segment [{start}, {length}] ends beyond the text of {len(corpus_tokens)} tokens")
    return np.concatenate([corpus_tokens[start : start + length] for start, length in segments]).astype(np.int64)


def _tree(name: str, hash_ids: Ragged) -> _Tree:
    ids = hash_ids.values
    sorted_ids, first_seen, inverse = np.unique(ids, return_index=True, return_inverse=True)
    rank = np.empty(len(sorted_ids), dtype=np.int64)
    rank[np.argsort(first_seen)] = np.arange(len(sorted_ids))
    ranks = rank[inverse]
    parents = np.concatenate(([-1], ranks[:-1]))
    parents[hash_ids.offsets[:-1]] = -1
    parent_rank = parents[np.sort(first_seen)]
    clash = parents != parent_rank[ranks]
    if clash.any():
        raise InputError(
            f"trace {name!r}: hash id {ids[np.argmax(clash)]} follows two different ids;"
            " expected an id to stand for a block and all blocks before it"
        )
    return _Tree(sorted_ids, rank, parent_rank, _ordinals(parent_rank))


def _ordinals(parents: IntArray) -> IntArray:
    """How many entries before each one have the same parent."""
    order = np.argsort(parents, kind="stable")
    grouped = parents[order]
    starts_group = np.concatenate(([True], grouped[1:] != grouped[:-1]))
    group_start = np.maximum.accumulate(np.where(starts_group, np.arange(len(parents)), 0))
    ordinals = np.empty(len(parents), dtype=np.int64)
    ordinals[order] = np.arange(len(parents)) - group_start
    return ordinals


def _num_digits(num_values: int, base: int) -> int:
    """Digits that write every number below `num_values` in `base`."""
    digits = 1
    while base**digits < num_values:
        digits += 1
    return digits


def _scramble(numbers: IntArray, modulus: int) -> IntArray:
    """A fixed pseudo-random number below `modulus` for each number (mixing steps of SplitMix64, Steele et al. 2014)."""
    z = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled: IntArray = ((z ^ (z >> np.uint64(31))) % np.uint64(modulus)).astype(np.int64)
    return scrambled
