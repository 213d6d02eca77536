"""What the router remembers of its own requests against imbalance: SGLang's cache-aware router."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from core.errors import InputError
from core.interfaces import BlockKey, PolicyEnv
from core.request import Request
from core.routing import ReplicaView, RoutingPolicy


class CacheAware(RoutingPolicy):
    """While loads are balanced, to the replica that was sent most of this prompt before; else to the least loaded.

    Out of balance: the most and the fewest requests that are not done differ by more than `balance_abs_threshold`, and
    by more than a factor of `balance_rel_threshold`. In balance: if the longest prefix that any replica was sent covers
    more than `cache_threshold` of the prompt, the replica that was sent it last; else the one that was sent the least.
    The router sees nobody's cache: it remembers `max_tree_blocks` blocks a replica, those unused longest forgotten
    first, every `eviction_interval_s`. O(blocks of the prompt + replicas).

    Source: SGLang router, policy cache_aware (defaults of its first release: 0.5, 32, 1.0001, 60 s; SGLang's tree holds
    characters, at most 2^24 a worker, this one blocks).
    """

    def __init__(
        self,
        env: PolicyEnv,
        cache_threshold: float = 0.5,
        balance_abs_threshold: int = 32,
        balance_rel_threshold: float = 1.0001,
        eviction_interval_s: float = 60.0,
        max_tree_blocks: int = 1 << 18,
    ) -> None:
        super().__init__(env)
        given = {
            "cache_threshold": cache_threshold,
            "balance_abs_threshold": balance_abs_threshold,
            "balance_rel_threshold": balance_rel_threshold,
            "eviction_interval_s": eviction_interval_s,
            "max_tree_blocks": max_tree_blocks,
        }
        for name, value in given.items():
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(f"routing.{name}={value}: expected a number from 0 on")
        self._cache_threshold = cache_threshold
        self._balance_abs_threshold = balance_abs_threshold
        self._balance_rel_threshold = balance_rel_threshold
        self._interval_ps = round(eviction_interval_s * 1e12)
        self._max_tree_blocks = max_tree_blocks
        self._next_eviction_ps = self._interval_ps
        self._sent: list[OrderedDict[BlockKey, None]] = []  # by replica, oldest use first
        self._last: dict[BlockKey, int] = {}  # block -> the replica that was sent it last

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        self._sent = self._sent or [OrderedDict() for _ in replicas]
        self._forget()
        keys = request.keys.keys(0, request.num_prompt_tokens // self.env.block_size_tokens)
        loads = [replica.num_outstanding for replica in replicas]
        most, least = max(loads), min(loads)
        if most - least > self._balance_abs_threshold and most > least * self._balance_rel_threshold:
            chosen = loads.index(least)
        else:
            chosen = self._by_prefix(request, keys)
        self._remember(chosen, keys)
        return chosen

    def _by_prefix(self, request: Request, keys: Sequence[BlockKey]) -> int:
        num_matched, owner = 0, -1
        for key in keys:
            if key not in self._last:
                break
            num_matched, owner = num_matched + 1, self._last[key]
        num_tokens = num_matched * self.env.block_size_tokens
        if num_tokens > self._cache_threshold * request.num_prompt_tokens:
            return owner
        sizes = list(map(len, self._sent))
        return sizes.index(min(sizes))

    def _remember(self, number: int, keys: Sequence[BlockKey]) -> None:
        """Leaf to root: beginnings are used last, and outlive what continues them."""
        sent = self._sent[number]
        for key in reversed(keys):
            sent[key] = None
            sent.move_to_end(key)
            self._last[key] = number

    def _forget(self) -> None:
        if self.env.now() < self._next_eviction_ps:
            return
        self._next_eviction_ps = self.env.now() + self._interval_ps
        for number, sent in enumerate(self._sent):
            while len(sent) > self._max_tree_blocks:
                key, _ = sent.popitem(last=False)
                if self._last.get(key) == number:
                    self._last.pop(key)
