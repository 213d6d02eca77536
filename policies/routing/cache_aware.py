"""What the router remembers of its own requests against imbalance: SGLang's cache-aware router."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from core.errors import InputError
from core.interfaces import BlockKey, PolicyEnv
from core.least import first_least, largest
from core.request import Request
from core.routing import Replicas, RoutingPolicy


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

    looks_back = False

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
        # By replica, oldest use first: blocks by their keys, and the blocks of a prompt that no other has, as one.
        self._sent: list[OrderedDict[BlockKey, int]] = []
        self._num_sent: list[int] = []  # blocks, by replica
        self._last: dict[BlockKey, int] = {}  # block -> the replica that was sent it last

    def route(self, request: Request, replicas: Replicas) -> int:
        loads = replicas.num_outstanding()
        if not self._sent:
            self._sent, self._num_sent = [OrderedDict() for _ in loads], [0] * len(loads)
        self._forget()
        num_blocks = request.num_prompt_tokens // self.env.block_size_tokens
        keys = request.keys.keys(0, min(num_blocks, request.keys.num_shared))
        least_loaded = first_least(loads)
        most, least = largest(loads), loads[least_loaded]
        if most - least > self._balance_abs_threshold and most > least * self._balance_rel_threshold:
            chosen = least_loaded
        else:
            chosen = self._by_prefix(request, keys)
        self._remember(chosen, request, keys, num_blocks - len(keys))
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
        return first_least(self._num_sent)

    def _remember(self, number: int, request: Request, keys: Sequence[BlockKey], num_own: int) -> None:
        """Leaf to root: beginnings are used last, and outlive what continues them."""
        sent = self._sent[number]
        if num_own:
            sent[request.keys.key(len(keys))] = num_own
        num_before = len(sent)
        for key in reversed(keys):
            sent[key] = 1
            sent.move_to_end(key)
            self._last[key] = number
        self._num_sent[number] += num_own + len(sent) - num_before

    def _forget(self) -> None:
        if self.env.now() < self._next_eviction_ps:
            return
        self._next_eviction_ps = self.env.now() + self._interval_ps
        for number, sent in enumerate(self._sent):
            while (num_over := self._num_sent[number] - self._max_tree_blocks) > 0:
                key, num_blocks = next(iter(sent.items()))
                if num_blocks > num_over:
                    sent[key] -= num_over  # in its place
                else:
                    del sent[key]
                self._num_sent[number] -= min(num_blocks, num_over)
                if self._last.get(key) == number:
                    del self._last[key]
