"""SGLang's rule of length: who has produced least starts again."""

from __future__ import annotations

from typing import Any

from core.errors import InputError
from core.interfaces import PolicyEnv, Running
from core.request import Request
from policies.preemption.ranked import Ranked, num_outputs


class SGLangLength(Ranked):
    """Fewest outputs; of equals the longest prompt. Once one is taken, more follow until there is room for
    `headroom_steps` further tokens of each that stays; one always stays. O(running).

    SGLang's `retract_decode`, from notes on it, not read (there only the decoding batch is looked at, here a request
    amid its prompt has 0 outputs and is among the first to go).
    """

    def __init__(
        self,
        env: PolicyEnv,
        mode: str = "recompute",
        headroom_steps: int = 20,
        max_preemptions: int | None = None,
    ) -> None:
        super().__init__(env, mode, max_preemptions)
        if not isinstance(headroom_steps, int) or headroom_steps < 0:
            raise InputError(f"preemption.headroom_steps={headroom_steps}: expected a whole number of at least 0")
        self._headroom_steps = headroom_steps

    def rank(self, request: Request) -> Any:
        return (-num_outputs(request), request.num_prompt_tokens)

    def headroom_blocks(self, running: Running) -> int:
        num_left = len(running)
        return -(-num_left * self._headroom_steps // self.env.block_size_tokens) if num_left > 1 else 0
