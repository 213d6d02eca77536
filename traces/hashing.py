"""Prompts told by block hashes, whatever they were told by before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.errors import InputError
from traces.block_references import block_references
from traces.ragged import Ragged
from traces.schema import Trace


def with_hash_ids(trace: Trace, block_tokens: int | None = None) -> Trace:
    """The same requests with an id for every block of the prompt, counted from 0 by first appearance.

    `block_tokens` is for prompts given as text (default 16); what was given as text, answers included, is left out.
    Salts are told by ids of their own. Raises InputError for a trace without prefix information, and for another
    block size than a trace's own.
    """
    references = block_references(trace, block_tokens)
    return replace(
        trace,
        hash_block_tokens=references.block_tokens,
        hash_ids=Ragged(references.blocks, references.offsets),
        prompt_segments=None,
        output_segments=None,
        hash_salt=None,
    )


def with_private_ids(trace: Trace, block_tokens: int) -> Trace:
    """The same requests with ids that no two prompts share: for tools that make prompts from ids alone."""
    if trace.has_prefix_information:
        raise InputError(f"trace {trace.name!r} says which prompts share a prefix; expected one that does not")
    num_blocks = -(-trace.num_prompt_tokens // block_tokens)
    offsets = np.concatenate(([0], np.cumsum(num_blocks)))
    return replace(trace, hash_block_tokens=block_tokens, hash_ids=Ragged(np.arange(offsets[-1]), offsets))
