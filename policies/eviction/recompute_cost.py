"""What a block costs to compute again, relative to a block at the beginning of a text: from shapes, never measured."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from core.errors import InputError
from core.interfaces import PolicyEnv

LLAMA3_8B_TOKENS: Final = 57_258.0
"""P'/(L h) of Llama-3-8B: the length of a prompt whose attention takes as many FLOP as its linear layers."""


@mypyc_attr(allow_interpreted_subclasses=True)
class RecomputeCost:
    """Prefill FLOP per token, in units of a token's linear layers, of each block when all before it is cached.

    A prompt of n tokens costs n + n²/X, where X is `attention_equals_linear_tokens`: P'/(L h) for P' parameters outside
    of the embeddings, L layers and h = heads times head size. So the block at `position` costs
    1 + (2 position + 1) block_size / X per token.
    """

    def __init__(self, env: PolicyEnv, attention_equals_linear_tokens: float) -> None:
        if not attention_equals_linear_tokens > 0:
            raise InputError(
                f"eviction.attention_equals_linear_tokens={attention_equals_linear_tokens:g}: expected a number above 0"
            )
        self._per_block = env.block_size_tokens / attention_equals_linear_tokens

    def at(self, position: int) -> float:
        """Of the block that `position` blocks precede."""
        return 1 + (2 * position + 1) * self._per_block
