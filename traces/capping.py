"""Long requests cut down to a length, or left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.errors import InputError
from traces.schema import IntArray, Ragged, Trace

MOST = 2**62


def clip(trace: Trace, max_prompt_tokens: int = MOST, max_output_tokens: int = MOST) -> Trace:
    """Every request with at most that many tokens: the rest of its prompt, from the end, and of its output is cut.

    What two prompts shared they still share, as far as both reach.
    """
    _check(max_prompt_tokens, max_output_tokens)
    num_prompt_tokens = np.minimum(trace.num_prompt_tokens, max_prompt_tokens)
    return replace(
        trace,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=np.minimum(trace.num_output_tokens, max_output_tokens),
        hash_ids=_clipped_ids(trace, num_prompt_tokens),
        prompt_segments=_clipped_segments(trace.prompt_segments, max_prompt_tokens),
        output_segments=_clipped_segments(trace.output_segments, max_output_tokens),
    )


def drop_long(trace: Trace, max_prompt_tokens: int = MOST, max_output_tokens: int = MOST) -> Trace:
    """The requests that have no more tokens than that; a turn whose turn before is left out becomes a root."""
    _check(max_prompt_tokens, max_output_tokens)
    fits = (trace.num_prompt_tokens <= max_prompt_tokens) & (trace.num_output_tokens <= max_output_tokens)
    if not fits.any():
        caps = ((max_prompt_tokens, "prompt"), (max_output_tokens, "output"))
        told = " or ".join(f"{most} {what} tokens" for most, what in caps if most < MOST)
        raise InputError(f"trace {trace.name!r}: every request has more than {told}; expected a cap that leaves one")
    return trace.take(np.flatnonzero(fits))


def _check(max_prompt_tokens: int, max_output_tokens: int) -> None:
    if min(max_prompt_tokens, max_output_tokens) < 1:
        raise InputError(
            f"cap of {max_prompt_tokens} prompt and {max_output_tokens} output tokens; expected at least 1"
        )


def _clipped_ids(trace: Trace, num_prompt_tokens: IntArray) -> Ragged | None:
    if trace.hash_ids is None or trace.hash_block_tokens is None:
        return None
    num_blocks = -(-num_prompt_tokens // trace.hash_block_tokens)
    places = np.arange(len(trace.hash_ids.values)) - np.repeat(trace.hash_ids.offsets[:-1], trace.hash_ids.row_lengths)
    kept = places < np.repeat(num_blocks, trace.hash_ids.row_lengths)
    return Ragged(trace.hash_ids.values[kept], np.concatenate(([0], np.cumsum(num_blocks))))


def _clipped_segments(segments: Ragged | None, max_tokens: int) -> Ragged | None:
    if segments is None:
        return None
    lengths = segments.values[:, 1]
    ends = np.cumsum(lengths)
    num_before = np.concatenate(([0], ends))[segments.offsets[:-1]]
    starts = ends - lengths - np.repeat(num_before, segments.row_lengths)  # within its request
    clipped = np.clip(max_tokens - starts, 0, lengths)
    kept = clipped > 0
    values = np.column_stack((segments.values[:, 0], clipped))[kept]
    num_kept = np.concatenate(([0], np.cumsum(kept)))
    return Ragged(values, num_kept[segments.offsets])
