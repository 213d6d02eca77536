"""Cached prefix against load: NVIDIA Dynamo's KV router."""

from __future__ import annotations

import random
from math import exp

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.least import first_least_of_floats
from core.request import Request
from core.routing import Replicas, RoutingPolicy
from policies.routing.prefix_costs import at_most, costs_of


class PrefixAware(RoutingPolicy):
    """Least cost = `overlap_weight` x prefill blocks + decode blocks, each as it would be with this request.

    Prefill blocks: what the replica has yet to compute of the prompts routed to it, and of this one beyond the prefix
    that it has cached. Decode blocks: those of the prompts of all requests that are there and not done. With a
    `temperature` above 0 the replica is drawn from the run's seed, with weights exp(-cost / temperature), costs taken
    from 0 to 1. The first of equals. O(replicas x blocks found).

    Source: Dynamo's KV router, cost function of its documentation (defaults 1 and 0). There caches are known by events,
    here exactly; there a block that two requests share counts once, here twice.
    """

    looks_back = False

    def __init__(self, env: PolicyEnv, overlap_weight: float = 1.0, temperature: float = 0.0) -> None:
        super().__init__(env)
        for name, value in (("overlap_weight", overlap_weight), ("temperature", temperature)):
            if not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise InputError(f"routing.{name}={value}: expected a number from 0 on")
        self._overlap_weight = float(overlap_weight)
        self._temperature = temperature
        self._draw = random.Random(f"{env.seed}/routing")
        self._prefills: list[dict[Request, int]] = []  # by replica: tokens to compute, of who has no token yet
        self._oldest: dict[int, Request] = {}  # replica -> the first of these, of which it is not known that it has one
        self._prefill_tokens: list[int] = []  # sums, by replica
        self._decode_blocks: list[int] = []
        self._waits: list[bool] = []  # by replica, whether there is such a one

    def route(self, request: Request, replicas: Replicas) -> int:
        cached, num_prompt = replicas.num_cached_tokens(request), request.num_prompt_tokens
        if not self._prefills:
            self._prefills = [{} for _ in cached]
            self._prefill_tokens, self._decode_blocks = [0] * len(cached), [0] * len(cached)
            self._waits = [False] * len(cached)
        to_compute = [num_prompt - num_cached for num_cached in cached]
        costs = self._costs(to_compute)
        chosen = first_least_of_floats(costs)
        doubtful = [*self._oldest] if self._temperature else self._doubtful(to_compute, costs[chosen])
        if doubtful:
            self._look_at(doubtful, replicas)
            costs = self._costs(to_compute)
            chosen = first_least_of_floats(costs)
        if self._temperature:
            chosen = self._drawn(costs)
        self._prefills[chosen][request] = to_compute[chosen]
        self._oldest.setdefault(chosen, request)
        self._waits[chosen] = True
        self._prefill_tokens[chosen] += to_compute[chosen]
        self._decode_blocks[chosen] += self._num_blocks(request)
        return chosen

    def _costs(self, to_compute: list[int]) -> list[float]:
        return costs_of(
            self._prefill_tokens, to_compute, self._decode_blocks, self._overlap_weight, self.env.block_size_tokens
        )

    def _doubtful(self, to_compute: list[int], least_cost: float) -> list[int]:
        """Those that would cost no more, were all prompts there computed by now."""
        return at_most(
            least_cost, self._waits, to_compute, self._decode_blocks, self._overlap_weight, self.env.block_size_tokens
        )

    def _look_at(self, numbers: list[int], replicas: Replicas) -> None:
        """Only where it matters: whether a prompt is computed takes a look at the replica."""
        for number in numbers:
            if replicas[number].has_first_token(self._oldest[number]):
                self._pass_over_computed(number)

    def _pass_over_computed(self, number: int) -> None:
        """The prompts before the first that still waits for its first token."""
        prefills = self._prefills[number]
        while prefills:
            oldest = next(iter(prefills))
            if oldest.first_token_ps < 0:
                self._oldest[number] = oldest
                return
            self._prefill_tokens[number] -= prefills.pop(oldest)
        del self._oldest[number]
        self._waits[number] = False

    def _num_blocks(self, request: Request) -> int:
        return -(-request.num_prompt_tokens // self.env.block_size_tokens)

    def _drawn(self, costs: list[float]) -> int:
        least, most = min(costs), max(costs)
        width = (most - least) or 1.0
        weights = [exp(-(cost - least) / width / self._temperature) for cost in costs]
        return self._draw.choices(range(len(costs)), weights)[0]

    def on_done(self, request: Request, replica: int) -> None:
        self._prefill_tokens[replica] -= self._prefills[replica].pop(request, 0)
        self._decode_blocks[replica] -= self._num_blocks(request)
        if self._oldest.get(replica) is request:
            self._pass_over_computed(replica)
