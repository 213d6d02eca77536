"""A cache's references to objects, one a row, as a trace: every object is one block that no other precedes."""

from __future__ import annotations

import numpy as np

from traces.ragged import IntArray, Ragged
from traces.readers.bad_rows import BadRows
from traces.readers.fields import MAX_TOKENS
from traces.readers.source import Source
from traces.schema import Trace


def object_trace(
    source: Source, bad_rows: BadRows, arrival_ps: IntArray, object_ids: IntArray, sizes: IntArray
) -> Trace:
    """One request a reference: a prompt of one block, whose id is the object's, and one output token.

    A block has as many tokens as an object has bytes if all objects are of one size, else 1: what differs in size is
    taken for units. Made for hit curves over blocks. The simulator leaves a token of each prompt to compute, so it sees
    no hit in prompts of one token.
    """
    num_rows = len(arrival_ps)
    if object_ids.min() < 0:  # no valid hash ids
        object_ids = np.unique(object_ids, return_inverse=True)[1]
    is_uniform = sizes.min() == sizes.max() and 1 <= sizes[0] <= MAX_TOKENS
    block_tokens = int(sizes[0]) if is_uniform else 1
    return Trace(
        name=source.name,
        arrival_ps=arrival_ps,
        num_prompt_tokens=np.full(num_rows, block_tokens, dtype=np.int64),
        num_output_tokens=np.ones(num_rows, dtype=np.int64),
        hash_block_tokens=block_tokens,
        hash_ids=Ragged(_from_zero_on(object_ids), np.arange(num_rows + 1)),
        sha256=source.sha256,
        num_dropped=bad_rows.num_dropped(),
    ).sorted_by_arrival()


def _from_zero_on(object_ids: IntArray) -> IntArray:
    """The ids, numbered anew where some are negative, as 64 bits without a sign may read: such keys are nobody's."""
    if bool((object_ids >= 0).all()):
        return object_ids
    _, numbers = np.unique(object_ids, return_inverse=True)
    return numbers.astype(np.int64)
