"""Block ids of prompts that share their beginnings with earlier ones."""

from __future__ import annotations

import numpy as np

from core.errors import InputError
from traces.ragged import IntArray, Ragged

MAX_BLOCKS = 2**29  # 4 GiB of ids


def chained_ids(num_blocks: IntArray, origin: IntArray, num_shared_blocks: IntArray) -> Ragged:
    """Ids `[num_prompts]` x `num_blocks`: the first `num_shared_blocks` are those of the earlier prompt `origin`, the
    others are new.

    Ids are dense and in order of first appearance, and an id always follows the same one. Time and memory are linear in
    the ids. Raises InputError if there are too many to hold.
    """
    offsets = np.concatenate(([0], np.cumsum(num_blocks)))
    if offsets[-1] > MAX_BLOCKS:
        raise InputError(
            f"the prompts have {offsets[-1]} blocks, more than {MAX_BLOCKS}; expected fewer or shorter prompts, or a"
            " larger hash_block_tokens"
        )
    num_new = num_blocks - num_shared_blocks
    new_ids_before = np.cumsum(num_new) - num_new
    values = np.arange(offsets[-1]) + np.repeat(new_ids_before - offsets[:-1] - num_shared_blocks, num_blocks)
    # Row by row, since the shared ids of one prompt may be shared ids of its origin too.
    sharing = np.flatnonzero(num_shared_blocks)
    starts, origins = offsets[sharing].tolist(), offsets[origin[sharing]].tolist()
    for start, from_, num in zip(starts, origins, num_shared_blocks[sharing].tolist(), strict=True):
        values[start : start + num] = values[from_ : from_ + num]
    return Ragged(values, offsets)
