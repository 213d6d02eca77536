"""A shorter, faster or smaller version of a trace, with its sharing of prefixes kept exact."""

from __future__ import annotations

import random
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

import numpy as np

from core.errors import InputError
from traces.readers.fields import MAX_TOKENS
from traces.schema import IntArray, Ragged, Trace
from traces.statistics import conversations


def limit(trace: Trace, num_requests: int) -> Trace:
    """The first `num_requests` requests (all of them, if there are fewer)."""
    if num_requests < 1:
        raise InputError(f"trace.limit={num_requests}; expected at least 1")
    return trace.take(np.arange(min(num_requests, trace.num_requests)))


def rate_scale(trace: Trace, factor: Fraction | str | float) -> Trace:
    """The same requests `factor` times as fast: every arrival time is divided by it, rounded down to a picosecond.

    Think times and cancellation times are the users' own and stay as they are; so do lengths and hash ids.
    """
    divisor = _positive("trace.rate_scale", factor)
    # Python integers: a product with the denominator may leave 64 bits.
    arrivals_ps = [arrival * divisor.denominator // divisor.numerator for arrival in trace.arrival_ps.tolist()]
    if arrivals_ps and arrivals_ps[-1] >= 2**63:
        raise InputError(f"trace.rate_scale={factor}: the trace would last over 106 days; expected a larger factor")
    return replace(trace, arrival_ps=np.array(arrivals_ps, dtype=np.int64))


def length_scale(trace: Trace, scale: Fraction | str | float) -> Trace:
    """The same requests with lengths max(1, ceil(length * scale)).

    Hash blocks are scaled along (512 tokens at 1/32 become 16) and must stay a whole number of tokens; then a prompt
    has as many blocks as before and shares the same ones. Of a prompt given as segments every segment is scaled on its
    own and keeps its start, and the prompt's length is their sum: a shared prefix is a run of equal segments, and those
    stay equal.
    """
    ratio = _positive("trace.length_scale", scale)
    prompt_segments = _scaled_segments(trace.prompt_segments, ratio)
    output_segments = _scaled_segments(trace.output_segments, ratio)
    return replace(
        trace,
        num_prompt_tokens=_num_tokens(prompt_segments, trace.num_prompt_tokens, ratio),
        num_output_tokens=_num_tokens(output_segments, trace.num_output_tokens, ratio),
        hash_block_tokens=_scaled_block(trace, ratio),
        prompt_segments=prompt_segments,
        output_segments=output_segments,
    )


def shuffle_tenants(trace: Trace, seed: int = 0) -> Trace:
    """The same requests with tenants dealt out anew among conversations: as many conversations each, others.

    A conversation is given one tenant (that of another one's first request). Prompts, salts and times stay.
    """
    if trace.tenant is None:
        raise InputError(f"trace {trace.name!r} has no tenants; expected a trace that has, to shuffle them")
    conversation = conversations(trace)
    _, first_row = np.unique(conversation, return_index=True)
    tenants = trace.tenant[first_row].tolist()
    random.Random(seed).shuffle(tenants)
    return replace(trace, tenant=np.array(tenants, dtype=np.int64)[conversation])


def _scaled(lengths: IntArray, ratio: Fraction) -> IntArray:
    products = lengths.astype(object) * ratio.numerator  # Python integers: exact beyond 64 bits
    scaled = np.maximum(1, -(-products // ratio.denominator))
    if scaled.max(initial=1) > MAX_TOKENS:
        expected = f"a scale that leaves at most {MAX_TOKENS}"
        shown = Decimal(ratio.numerator) / Decimal(ratio.denominator)  # beyond what a float holds, too
        tokens = f"{Decimal(int(scaled.max())):.3g} tokens"
        raise InputError(f"trace.length_scale={shown:.6g}: a request would have {tokens}; expected {expected}")
    lengths_scaled: IntArray = scaled.astype(np.int64)
    return lengths_scaled


def _scaled_segments(segments: Ragged | None, ratio: Fraction) -> Ragged | None:
    if segments is None:
        return None
    starts, lengths = segments.values.T
    return Ragged(np.column_stack((starts, _scaled(lengths, ratio))), segments.offsets)


def _num_tokens(segments: Ragged | None, lengths: IntArray, ratio: Fraction) -> IntArray:
    return _scaled(lengths, ratio) if segments is None else segments.row_sums(segments.values[:, 1])


def _scaled_block(trace: Trace, ratio: Fraction) -> int | None:
    if trace.hash_block_tokens is None:
        return None
    block = trace.hash_block_tokens * ratio
    if block.denominator != 1:
        raise InputError(
            f"trace.length_scale={ratio}: the trace's blocks of {trace.hash_block_tokens} tokens would become"
            f" {float(block):g} tokens; expected a scale that keeps them whole, such as"
            f" {Fraction(max(1, round(block)), trace.hash_block_tokens)}"
        )
    return int(block)


def _positive(key: str, value: Fraction | str | float) -> Fraction:
    try:
        # str() first: 0.1 means one tenth, not the float nearest to it.
        ratio = Fraction(str(value))
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(f"{key}={value}; expected a positive number such as 2, 0.5 or 1/32") from error
    if ratio <= 0:
        raise InputError(f"{key}={value}; expected more than 0")
    return ratio
