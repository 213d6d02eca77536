"""Mooncake JSON lines: milliseconds, an id for every block of the prompt. aiperf, vllm bench and guidellm take them.

All three read timestamps as floating point (aiperf: `MooncakeTrace.timestamp: int | float`; vLLM: `TimedTrace`), so
times are written exactly, with decimals where a millisecond is too coarse. A trace without prefix information gets no
`hash_ids`; aiperf then makes up a prompt of that length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from traces.hashing import with_hash_ids
from traces.readers.fields import PS_PER_MS
from traces.schema import Trace
from traces.writers.text import arrivals, write_lines

NAME = "mooncake"
DESCRIPTION = "JSON lines: timestamp (ms), lengths, hash_ids"
CARRIES = frozenset({"lengths", "hash_ids", "hash_salt", "origin"})
RESOLUTION_PS = 1
HASH_BLOCK_TOKENS = 512  # of prompts given as text, the size that the format's readers expect


def write(trace: Trace, file: BinaryIO) -> None:
    write_lines(file, _lines(trace))


def members(trace: Trace) -> Iterator[str]:
    """Lengths and ids of each row, as members of a JSON object."""
    prompts, outputs = trace.num_prompt_tokens.tolist(), trace.num_output_tokens.tolist()
    for num_prompt_tokens, num_output_tokens, ids in zip(prompts, outputs, _hash_ids(trace), strict=True):
        yield f'"input_length": {num_prompt_tokens}, "output_length": {num_output_tokens}{ids}'


def _lines(trace: Trace) -> Iterator[str]:
    for timestamp, rest in zip(arrivals(trace, PS_PER_MS), members(trace), strict=True):
        yield f'{{"timestamp": {timestamp}, {rest}}}'


def _hash_ids(trace: Trace) -> list[str]:
    """The member `hash_ids` of each row, with the comma before it."""
    if not trace.has_prefix_information:
        return [""] * trace.num_requests
    ids = with_hash_ids(trace, None if trace.hash_ids is not None else HASH_BLOCK_TOKENS).hash_ids
    assert ids is not None
    return [f', "hash_ids": {ids.row(row).tolist()}' for row in range(trace.num_requests)]
