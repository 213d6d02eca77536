"""Token-granular allocation: a slot is taken for each token (SGLang with page_size 1, LightLLM's TokenAttention)."""

from __future__ import annotations

from core.errors import InputError
from core.interfaces import PolicyEnv
from policies.allocation.paged import Paged


class TokenGranular(Paged):
    """Paged allocation whose block is one token: nothing is left over in a last block.

    The block is the pool's, so it goes with `pool.block_size_tokens=1` only; raises InputError for any other.
    """

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        if env.block_size_tokens != 1:
            raise InputError(
                f"allocation=token_granular takes slots of one token, pool.block_size_tokens is"
                f" {env.block_size_tokens}; expected pool.block_size_tokens=1"
            )
