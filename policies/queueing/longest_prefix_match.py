"""Longest prefix match: who finds most of its prompt in the cache goes first (SGLang's `lpm`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from core.errors import InputError
from core.interfaces import BlockKey, PolicyEnv, QueuePolicy, SchedulerView
from core.request import Request


class LongestPrefixMatch(QueuePolicy):
    """Most cached tokens first, ties in order of arrival; first come, first served while more than `max_waiting` wait.

    Of waiting requests that find at most `check_tokens` in the cache and share `share_tokens` or more with one before
    them, only that one keeps its turn: the others wait behind everybody else, until its prefix is there to be hit.
    Sharing is counted in whole blocks. Re-sorted in every step in which somebody could be admitted: O(waiting log
    waiting) and a look-up of each prompt. SGLang 0.5.9, `schedule_policy.py`, read; there ties keep the order of the
    last sort, and a look-up touches the cache, which this does not.
    """

    def __init__(self, env: PolicyEnv, max_waiting: int = 128, check_tokens: int = 32, share_tokens: int = 32) -> None:
        super().__init__(env)
        if not isinstance(max_waiting, int) or max_waiting < 1:
            raise InputError(f"queue.max_waiting={max_waiting}: expected a whole number of at least 1")
        self.window = max_waiting
        self._check_tokens = check_tokens
        self._last_shared_block = max(-(-share_tokens // env.block_size_tokens), 1) - 1

    def key(self, request: Request) -> Any:
        return request.queue_position

    def rerank(self, heads: Sequence[Request], view: SchedulerView) -> Iterable[Request]:
        if not view.prefix_caching or view.num_waiting > self.window:
            return heads
        num_cached = {request: view.num_cached_tokens(request) for request in heads}
        late = self._deprioritised(heads, num_cached)
        return sorted(heads, key=lambda request: (request in late, -num_cached[request]))

    def _deprioritised(self, heads: Sequence[Request], num_cached: dict[Request, int]) -> set[Request]:
        """Those whose prefix another one, further ahead, is about to bring into the cache."""
        late: set[Request] = set()
        seen: set[BlockKey] = set()  # of the block that ends the shared stretch: a key names all before it as well
        for request in heads:
            if num_cached[request] > self._check_tokens:
                continue
            if request.live[0].num_known < (self._last_shared_block + 1) * self.env.block_size_tokens:
                continue
            key = request.keys.key(self._last_shared_block)
            if key in seen:
                late.add(request)
            seen.add(key)
        return late
