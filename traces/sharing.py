"""How much the prompts of a trace share: what a prefix cache could hit at most, and how large it must be for that."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from traces.block_references import BlockReferences, block_references
from traces.capping import clip
from traces.ragged import IntArray, Ragged
from traces.schema import Trace
from traces.stack_distance import COLD, prefix_stack_distances, previous_references

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class PrefixCeiling:
    """Hits of an infinite cache, one request after the other, prompts only (answers add nothing to the cache).

    A hit is a leading block that an earlier prompt had. `hit_*` counts all blocks of the trace, the last, partial one
    of a prompt included. `engine_hit_*` counts as engines do: full blocks only, and at least one token is computed.
    """

    block_tokens: int
    num_prompt_tokens: int
    num_block_references: int
    num_full_block_references: int
    num_unique_blocks: int
    num_unique_full_blocks: int
    hit_blocks: int
    hit_tokens: int
    engine_hit_blocks: int

    @property
    def engine_hit_tokens(self) -> int:
        return self.engine_hit_blocks * self.block_tokens

    @property
    def hit_block_ratio(self) -> float:
        """Hit blocks over references."""
        return self.hit_blocks / self.num_block_references

    @property
    def hit_token_ratio(self) -> float:
        """Hit tokens over prompt tokens."""
        return self.hit_tokens / self.num_prompt_tokens

    @property
    def engine_hit_token_ratio(self) -> float:
        """What `prefix_hit_ratio` of a run can reach at most at this block size, if answers are never asked for."""
        return self.engine_hit_tokens / self.num_prompt_tokens


def prefix_ceiling(trace: Trace, block_tokens: int | None = None) -> PrefixCeiling | None:
    """The ceiling; None where the trace says nothing on prefixes: then it is undefined, not 0.

    `block_tokens`: for prompts given as text (default 16); a trace that names blocks has its own size.
    Raises InputError for another size than the trace's own. O(blocks log blocks).
    """
    return ceiling_of(block_references(trace, block_tokens)) if trace.has_prefix_information else None


def ceiling_of(references: BlockReferences) -> PrefixCeiling:
    """The same of references that are there already."""
    row_of = np.repeat(np.arange(len(references.num_blocks)), references.num_blocks)
    is_full = references.num_tokens == references.block_tokens
    hit = _leading(_seen_earlier(references.blocks, row_of), references)
    # An earlier prompt leaves its full blocks behind; the last token of this one is always computed.
    full_hit = np.zeros_like(is_full)
    full_hit[is_full] = _seen_earlier(references.blocks[is_full], row_of[is_full])
    may_hit = _places(references) < (prompt_tokens(references) - 1)[row_of] // references.block_tokens
    return PrefixCeiling(
        block_tokens=references.block_tokens,
        num_prompt_tokens=int(references.num_tokens.sum()),
        num_block_references=references.num_references,
        num_full_block_references=int(is_full.sum()),
        num_unique_blocks=references.num_unique,
        num_unique_full_blocks=len(np.unique(references.blocks[is_full])),
        hit_blocks=int(hit.sum()),
        hit_tokens=int(references.num_tokens[hit].sum()),
        engine_hit_blocks=int(_leading(full_hit & may_hit, references).sum()),
    )


def prefix_distances(references: BlockReferences) -> IntArray:
    """LRU stack distances of requests that look up all blocks at once and touch them tail first; COLD for a first one.

    See `prefix_stack_distances`. Raises InputError where an id follows two different ones: they are no prefix hashes.
    """
    references.parents()
    return prefix_stack_distances(Ragged(references.blocks, references.offsets))


def lru_hit_blocks(distances: IntArray, capacities_blocks: IntArray) -> IntArray:
    """Blocks that an LRU cache of each capacity hits, by their stack distances, `[num_capacities]`.

    Exact from the blocks of the longest request on; below that a request does not fit, and the figure is a bound.
    """
    return np.searchsorted(np.sort(distances[distances != COLD]), capacities_blocks, side="right")


def reuse_times_ps(references: BlockReferences) -> IntArray:
    """Time from each reference to the one before to the same block, `[num_references]`; -1 for a first one."""
    row_of = np.repeat(np.arange(len(references.num_blocks)), references.num_blocks)
    previous = previous_references(references.blocks)
    times_ps = references.arrival_ps[row_of]
    return np.where(previous < 0, -1, times_ps - times_ps[previous])


def longest_shared_prefix_tokens(trace: Trace, most: int) -> int:
    """The longest prefix, up to `most` tokens, that two prompts given as text have in common."""
    heads = sorted(block_references(clip(trace, max_prompt_tokens=most), 1).rows())
    return max((_num_common(a, b) for a, b in pairwise(heads)), default=0)


def prompt_tokens(references: BlockReferences) -> IntArray:
    """Prompt tokens of each request, `[num_requests]`."""
    return np.add.reduceat(references.num_tokens, references.offsets[:-1])


def _num_common(a: list[int], b: list[int]) -> int:
    """Chained ids: where one differs, so do all after it."""
    return sum(left == right for left, right in zip(a, b, strict=False))


def _places(references: BlockReferences) -> IntArray:
    """The position of each reference within its request."""
    starts = np.repeat(references.offsets[:-1], references.num_blocks)
    return np.arange(references.num_references) - starts


def _seen_earlier(blocks: IntArray, row_of: IntArray) -> Bools:
    """Whether an earlier request referred to the block."""
    _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    seen: Bools = row_of[first[inverse]] < row_of
    return seen


def _leading(hits: Bools, references: BlockReferences) -> Bools:
    """The hits before the first miss of each request."""
    num_misses = np.concatenate(([0], np.cumsum(~hits)))
    num_misses_before_request = np.repeat(num_misses[references.offsets[:-1]], references.num_blocks)
    leading: Bools = num_misses[1:] == num_misses_before_request
    return leading
