"""Cached prefix against load: NVIDIA Dynamo's KV router."""

from __future__ import annotations

import random
from math import exp

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.request import Request
from core.routing import Replicas, RoutingPolicy
from policies.routing.prefix_costs import PrefixCosts


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
        self._costs = self._costs_of(0)

    def _costs_of(self, num_replicas: int) -> PrefixCosts:
        return PrefixCosts(num_replicas, self._overlap_weight, self.env.block_size_tokens)

    def route(self, request: Request, replicas: Replicas) -> int:
        cached, num_prompt = replicas.num_cached_tokens(request), request.num_prompt_tokens
        if not self._prefills:
            self._prefills = [{} for _ in cached]
            self._costs = self._costs_of(len(cached))
        chosen = (
            self._drawn(cached, request, replicas) if self._temperature else self._cheapest(cached, request, replicas)
        )
        num_to_compute = num_prompt - cached[chosen]
        self._prefills[chosen][request] = num_to_compute
        self._oldest.setdefault(chosen, request)
        costs = self._costs
        costs.waits[chosen] = True
        costs.prefill_tokens[chosen] += num_to_compute
        costs.decode_blocks[chosen] += self._num_blocks(request)
        return chosen

    def _cheapest(self, cached: list[int], request: Request, replicas: Replicas) -> int:
        costs, num_prompt = self._costs, request.num_prompt_tokens
        chosen = costs.cheapest(num_prompt, cached)
        doubtful = costs.may_be_cheaper(chosen, num_prompt, cached)
        if doubtful and self._look_at(doubtful, replicas):
            chosen = costs.cheapest(num_prompt, cached)
        return chosen

    def _look_at(self, numbers: list[int], replicas: Replicas) -> bool:
        """Only where it matters: whether a prompt is computed takes a look at the replica. Returns whether any is."""
        computed = [number for number in numbers if replicas[number].has_first_token(self._oldest[number])]
        for number in computed:
            self._pass_over_computed(number)
        return bool(computed)

    def _pass_over_computed(self, number: int) -> None:
        """The prompts before the first that still waits for its first token."""
        prefills = self._prefills[number]
        while prefills:
            oldest = next(iter(prefills))
            if oldest.first_token_ps < 0:
                self._oldest[number] = oldest
                return
            self._costs.prefill_tokens[number] -= prefills.pop(oldest)
        del self._oldest[number]
        self._costs.waits[number] = False

    def _num_blocks(self, request: Request) -> int:
        return -(-request.num_prompt_tokens // self.env.block_size_tokens)

    def _drawn(self, cached: list[int], request: Request, replicas: Replicas) -> int:
        self._look_at([*self._oldest], replicas)
        costs = self._costs.of_each(request.num_prompt_tokens, cached)
        least, most = min(costs), max(costs)
        width = (most - least) or 1.0
        weights = [exp(-(cost - least) / width / self._temperature) for cost in costs]
        return self._draw.choices(range(len(costs)), weights)[0]

    def on_done(self, request: Request, replica: int) -> None:
        self._costs.prefill_tokens[replica] -= self._prefills[replica].pop(request, 0)
        self._costs.decode_blocks[replica] -= self._num_blocks(request)
        if self._oldest.get(replica) is request:
            self._pass_over_computed(replica)
