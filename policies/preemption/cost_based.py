"""The victim whose memory costs least to get back, by the cheaper of swapping and computing again."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from core.errors import InputError
from core.interfaces import Block, PolicyEnv, PreemptMode
from core.request import Request, Sequence
from policies.preemption.ranked import Ranked


class CostBased(Ranked):
    """Least seconds per byte freed, and for each victim the cheaper way (the idea of InferCept, ICML'24). O(running log
    blocks) a preemption.

    n tokens that nobody shares cost 2 x (latency_s + n x bytes_per_token / link_bytes_per_s) to copy out and back in,
    and n / prefill_tokens_per_s to compute again; `mode` confines the choice to one way. Shared tokens stay where they
    are and free nothing. Without room in host memory (`pool.host_blocks`) a swap becomes a recomputation, which is
    counted. Waiting, batching and the square of attention are left out.
    """

    reads_tables = True

    def __init__(
        self,
        env: PolicyEnv,
        mode: str = "cheaper",
        link_bytes_per_s: float = 25e9,
        bytes_per_token: float = 131_072,
        prefill_tokens_per_s: float = 10_000,
        latency_s: float = 0.0,
        max_preemptions: int | None = None,
    ) -> None:
        modes = {"cheaper": tuple(PreemptMode)} | {each.value: (each,) for each in PreemptMode}
        if mode not in modes:
            raise InputError(f"preemption.mode={mode}: expected {', '.join(modes)}")
        super().__init__(env, modes[mode][0].value, max_preemptions)
        rates = {
            "link_bytes_per_s": link_bytes_per_s,
            "bytes_per_token": bytes_per_token,
            "prefill_tokens_per_s": prefill_tokens_per_s,
        }
        for name, value in rates.items():
            if not isinstance(value, int | float) or not 0 < value < float("inf"):
                raise InputError(f"preemption.{name}={value}: expected a number above 0")
        if not isinstance(latency_s, int | float) or not 0 <= latency_s < float("inf"):
            raise InputError(f"preemption.latency_s={latency_s}: expected a number from 0 on")
        self._modes = modes[mode]
        self._swap_token_s = bytes_per_token / link_bytes_per_s
        self._recompute_token_s = 1 / prefill_tokens_per_s
        self._latency_s = latency_s

    def cost_s(self, num_tokens: int, mode: PreemptMode) -> float:
        """Seconds to take so many tokens' KV away and have it back."""
        if mode is PreemptMode.RECOMPUTE:
            return num_tokens * self._recompute_token_s
        return 2 * (self._latency_s + num_tokens * self._swap_token_s)

    def cheapest(self, num_tokens: int) -> PreemptMode:
        """Of equals recomputation, which needs no host memory."""
        return min(self._modes, key=lambda mode: self.cost_s(num_tokens, mode))

    def mode(self, request: Request) -> PreemptMode:
        return self.cheapest(self._num_own_tokens(request))

    def rank(self, request: Request) -> Any:
        num_tokens = self._num_own_tokens(request)
        if num_tokens == 0:
            return -float("inf")
        return -min(self._token_s(num_tokens, mode) for mode in self._modes)

    def _token_s(self, num_tokens: int, mode: PreemptMode) -> float:
        """Cost per token freed; every token has as many bytes. Without latency the same for all, to the last bit."""
        if mode is PreemptMode.RECOMPUTE:
            return self._recompute_token_s
        return 2 * (self._latency_s / num_tokens + self._swap_token_s)

    def _num_own_tokens(self, request: Request) -> int:
        return sum(self._own_tokens_of(sequence) for sequence in request.live)

    def _own_tokens_of(self, sequence: Sequence) -> int:
        """Its tokens less those in shared blocks, which stand at the beginning (as do those that left a window)."""
        num_shared = bisect_left(sequence.tables[0], True, key=_is_own)
        return max(0, sequence.num_computed - num_shared * self.env.block_size_tokens)


def _is_own(block: Block | None) -> bool:
    return block is not None and block.ref_count == 1
