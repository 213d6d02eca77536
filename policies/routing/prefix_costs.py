"""What `PrefixAware` reckons for each replica, as machine code where there is any: for numpy 64 are few."""

from __future__ import annotations


def costs_of(
    prefill_tokens: list[int],
    to_compute: list[int],
    decode_blocks: list[int],
    overlap_weight: float,
    block_size_tokens: int,
) -> list[float]:
    """By replica, the cost of sending it a request of which it has `to_compute` tokens to compute; and `prefill_tokens`
    before that, and `decode_blocks` in use.
    """
    return [
        overlap_weight * (prefill_tokens[number] + num_new) / block_size_tokens + decode_blocks[number]
        for number, num_new in enumerate(to_compute)
    ]


def at_most(
    cost: float,
    is_asked: list[bool],
    to_compute: list[int],
    decode_blocks: list[int],
    overlap_weight: float,
    block_size_tokens: int,
) -> list[int]:
    """The replicas among those asked for that would cost no more than this if they had nothing to compute before."""
    return [
        number
        for number, num_new in enumerate(to_compute)
        if is_asked[number] and overlap_weight * num_new / block_size_tokens + decode_blocks[number] <= cost
    ]
