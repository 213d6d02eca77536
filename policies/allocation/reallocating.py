"""Contiguous growth with reallocation: a longer run, to which everything is copied (Hugging Face's DynamicCache)."""

from __future__ import annotations

import math

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.request import Request
from policies.allocation.contiguous import Contiguous


class Reallocating(Contiguous):
    """A run for the prompt; once it is full, one `growth_factor` times as long (at least a block longer).

    Both runs exist until the copy is made, and the copies are counted. `growth_factor` 1 is `torch.cat` for every block
    (for every token where blocks have one), 2 is doubling.
    """

    def __init__(
        self, env: PolicyEnv, growth_factor: float = 2.0, placement: str = "first_fit", compaction: bool = False
    ) -> None:
        super().__init__(env, placement, compaction)
        if not isinstance(growth_factor, int | float) or not 1 <= growth_factor < math.inf:
            raise InputError(f"allocation.growth_factor={growth_factor}: expected a number from 1 on")
        self._growth_factor = growth_factor

    def reserved_tokens(self, request: Request, num_tokens: int) -> int:
        """The least of its run lengths that holds the tokens, and all that are known: a preempted request whose old
        and new runs do not fit at the same time comes back to the longer one. O(log tokens), O(tokens) for factors near
        1.
        """
        size = self.env.block_size_tokens
        num_known = request.live[0].num_known if request.live else 0
        num_blocks, num_needed = -(-request.num_prompt_tokens // size), -(-max(num_tokens, num_known) // size)
        if self._growth_factor == 1:
            return max(num_blocks, num_needed) * size
        while num_blocks < num_needed:
            num_blocks = max(int(num_blocks * self._growth_factor), num_blocks + 1)
        return num_blocks * size
