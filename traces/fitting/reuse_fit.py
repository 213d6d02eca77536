"""Shared beginnings of a trace as a recipe: what is common to all, and what repeats an earlier request."""

from __future__ import annotations

from typing import Any

import numpy as np

from traces.block_references import BlockReferences
from traces.fitting.prefix_forest import prefix_forest
from traces.fitting.ranks import rank_correlation
from traces.fitting.tables import FEW_PROBABILITIES, plain, table
from traces.schema import IntArray, Ragged, Trace

NUM_PARTS = 10  # of the trace, each with its own share of repeating requests
NUM_LENGTH_CLASSES = 8
REPEATS_PER_CLASS = 50  # too few for a table of their own: fewer classes


def fit_lengths_and_reuse(trace: Trace, references: BlockReferences) -> dict[str, Any]:
    """The recipe's keys for lengths, common prefix and reuse.

    Requests that share no more than nearly all do are one population; those that repeat more are another, with lengths
    of their own. For the latter: their share over the course of the trace, their shared or new blocks (by class of
    length), the blocks of the request that last held the shared ones that are not repeated, and the time since it
    arrived.
    """
    forest = prefix_forest(Ragged(references.blocks, references.offsets))
    repeats = forest.repeats
    fresh = np.setdiff1d(np.arange(trace.num_requests), repeats)
    common_tokens = forest.num_common * references.block_tokens
    own_tokens = np.maximum(1, trace.num_prompt_tokens[fresh] - common_tokens)
    keys: dict[str, Any] = {"hash_block_tokens": references.block_tokens}
    keys |= _lengths(own_tokens, trace.num_output_tokens[fresh])
    if common_tokens:
        keys["prefix"] = {"kind": "system_prompts", "count": 1, "tokens": common_tokens}
    if len(repeats) == 0:
        return keys
    num_blocks = references.num_blocks
    holder = forest.holder[repeats]
    parts = np.array_split(np.arange(trace.num_requests), min(NUM_PARTS, trace.num_requests))
    is_repeat = np.isin(np.arange(trace.num_requests), repeats)
    keys["reuse"] = {
        "ratio": [plain(round(float(is_repeat[part].mean()), 4)) for part in parts],
        **_lengths(trace.num_prompt_tokens[repeats], trace.num_output_tokens[repeats]),
        **_blocks_by_length(trace.num_prompt_tokens[repeats], num_blocks[repeats], forest.num_shared[repeats]),
        "left_blocks": table(num_blocks[holder] - forest.num_shared[repeats], FEW_PROBABILITIES),
        "age_s": table((trace.arrival_ps[repeats] - trace.arrival_ps[holder]) / 1e12, FEW_PROBABILITIES),
    }
    return keys


def fit_lengths(trace: Trace) -> dict[str, Any]:
    """The recipe's keys for lengths, where nothing is known of shared beginnings."""
    return _lengths(trace.num_prompt_tokens, trace.num_output_tokens)


def _lengths(prompt_tokens: IntArray, output_tokens: IntArray) -> dict[str, Any]:
    correlation = round(rank_correlation(prompt_tokens, output_tokens), 3)
    lengths = {"prompt_tokens": table(prompt_tokens), "output_tokens": table(output_tokens)}
    return lengths | ({"length_rank_correlation": plain(correlation)} if correlation else {})


def _blocks_by_length(prompt_tokens: IntArray, num_blocks: IntArray, num_shared: IntArray) -> dict[str, Any]:
    """Tables of the shared or of the new blocks by class of length: of those that vary less within a class.

    Where prompts share system prompts it is the shared ones, where they continue conversations the new ones.
    """
    num_classes = max(1, min(NUM_LENGTH_CLASSES, len(prompt_tokens) // REPEATS_PER_CLASS))
    classes = np.array_split(np.argsort(prompt_tokens, kind="stable"), num_classes)
    columns = {"shared_blocks": num_shared, "new_blocks": num_blocks - num_shared}
    spread = {name: np.mean([np.std(column[rows]) for rows in classes]) for name, column in columns.items()}
    steadier = min(columns, key=lambda name: float(spread[name]))
    return {steadier: [table(columns[steadier][rows], FEW_PROBABILITIES) for rows in classes]}
