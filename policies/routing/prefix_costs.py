"""What `PrefixAware` reckons for each replica, as machine code where there is any: for numpy 64 are few."""

from __future__ import annotations


class PrefixCosts:
    """By replica: `prefill_tokens` that are yet to compute of the prompts routed there, whether somebody `waits` for
    them, and `decode_blocks` of those who are not done.
    """

    def __init__(self, num_replicas: int, overlap_weight: float, block_size_tokens: int) -> None:
        self._overlap_weight = overlap_weight
        self._block_size_tokens = block_size_tokens
        self.prefill_tokens = [0] * num_replicas
        self.decode_blocks = [0] * num_replicas
        self.waits = [False] * num_replicas

    def of_each(self, num_prompt_tokens: int, cached: list[int]) -> list[float]:
        """Of sending there a request with so long a prompt, of which so many tokens are cached there."""
        return [
            self._of(self.prefill_tokens[number] + num_prompt_tokens - num_cached, number)
            for number, num_cached in enumerate(cached)
        ]

    def cheapest(self, num_prompt_tokens: int, cached: list[int]) -> int:
        """The replica, the first of equals."""
        place, least = 0, float("inf")
        for number, num_cached in enumerate(cached):
            cost = self._of(self.prefill_tokens[number] + num_prompt_tokens - num_cached, number)
            if cost < least:
                place, least = number, cost
        return place

    def may_be_cheaper(self, than: int, num_prompt_tokens: int, cached: list[int]) -> list[int]:
        """The replicas that would cost no more than this one does, were whoever waits there computed by now."""
        cost = self._of(self.prefill_tokens[than] + num_prompt_tokens - cached[than], than)
        return [
            number
            for number, waits in enumerate(self.waits)
            if waits and self._of(num_prompt_tokens - cached[number], number) <= cost
        ]

    def _of(self, num_tokens: int, number: int) -> float:
        return self._overlap_weight * num_tokens / self._block_size_tokens + self.decode_blocks[number]
