"""Preemption policies: who goes, by which way, how often, and what it costs to have it back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spans import assert_equal, assert_sound
from workloads import Workload, workloads
from world import Bench, Run, Settings, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.errors import InputError
from core.interfaces import PolicyEnv, PreemptMode, Shortage
from core.request import Outcome
from policies.preemption.cost_based import CostBased
from policies.preemption.last_arrived import LastArrived
from policies.preemption.least_kv import LeastKV
from policies.preemption.lowest_priority import LowestPriority
from policies.preemption.most_kv import MostKV
from policies.preemption.random import Random
from policies.preemption.sglang_length import SGLangLength
from policies.preemption.shortest_remaining import ShortestRemaining

BOUND = 3
POLICIES = {
    "last_arrived": LastArrived,
    "lowest_priority": LowestPriority,
    "sglang_length": partial(SGLangLength, headroom_steps=2),
    "least_kv": LeastKV,
    "most_kv": partial(MostKV, max_preemptions=BOUND),
    "shortest_remaining": ShortestRemaining,
    "shortest_remaining_noisy": partial(ShortestRemaining, noise=0.7, max_preemptions=BOUND),
    "random": partial(Random, max_preemptions=BOUND),
    "cost_based": partial(CostBased, latency_s=1e-3, max_preemptions=BOUND),
}
ENV = PolicyEnv(lambda: 0, 1000, 16)


def three_running() -> Bench:
    """(prompt, output): 0 is (64, 50) and 1 is (16, 10), 8 outputs each; 2 is (32, 100), came later and has 3."""
    bench = Bench(Settings(1000, caching=False))
    bench.add(64, 50, priority=1)
    bench.add(16, 10, priority=2)
    bench.steps(5)
    bench.add(32, 100, priority=0)
    bench.steps(3)
    return bench


def victim(policy: Any, bench: Bench) -> int:
    running = bench.scheduler.running
    return policy.select(running, Shortage(1, 0), next(iter(running))).request.request_id  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (LastArrived, 2),
        (LowestPriority, 1),
        (SGLangLength, 2),  # 3 outputs, the others have 8
        (LeastKV, 1),  # 23 tokens against 71 and 34
        (MostKV, 0),
        (ShortestRemaining, 2),  # 97 tokens left against 42 and 2
    ],
)
def test_who_goes(policy, expected):
    assert victim(policy(ENV), three_running()) == expected


def test_of_equals_the_last_goes():
    bench = Bench(Settings(1000, caching=False))
    for _ in range(3):
        bench.add(16, 10)
    bench.steps(3)
    for policy in (SGLangLength, LeastKV, MostKV, ShortestRemaining, CostBased, LowestPriority):
        assert victim(policy(ENV), bench) == 2, policy
    assert victim(LowestPriority(ENV, ties="first"), bench) == 0


def test_of_equal_outputs_the_longest_prompt_goes():
    bench = Bench(Settings(1000, caching=False))
    for num_prompt in (16, 48, 32):
        bench.add(num_prompt, 10)
    bench.steps(3)
    assert victim(SGLangLength(ENV), bench) == 1


@pytest.mark.parametrize(("headroom_steps", "num_preempted"), [(0, 1), (5, 1), (6, 2), (20, 3)])
def test_retraction_goes_on_until_there_is_headroom(headroom_steps, num_preempted):
    """64 slots, four requests of 16 tokens. One retracted leaves three and 16 free: room for 5 more tokens each, beside
    the one that was wanted. Two leave two and 32 free, not enough for 20 each; the last one stays whatever it lacks.
    """
    preemption = partial(SGLangLength, headroom_steps=headroom_steps)
    bench = Bench(Settings(64, block_size=1, caching=False, preemption=preemption))
    for _ in range(4):
        bench.add(10, 20)
    preempted: list[int] = []
    while not preempted:
        plan = bench.step()
        assert plan is not None
        preempted = [request.request_id for request in plan.preempted]
    assert preempted == [3, 2, 1][:num_preempted]
    bench.drain()


def test_a_victim_is_drawn_from_the_runs_seed():
    def victims(seed: int) -> list[int]:
        settings_of_run = Settings(30, block_size=4, caching=False, preemption=Random, seed=seed)
        run = simulate(trace_of([0] * 6, [12] * 6, [30] * 6), settings_of_run)
        return [who for _, _, who, _ in run.decisions(Event.PREEMPT)]

    assert victims(1) == victims(1)
    assert victims(1) != victims(2)


# ---- starvation -------------------------------------------------------------------------------------------------


def tug_of_war(max_preemptions: int | None) -> Bench:
    """Two prompts of 8 in 10 slots, a token a step, admitted on the first chunk: whoever is larger loses all."""
    preemption = partial(MostKV, max_preemptions=max_preemptions)
    bench = Bench(Settings(10, block_size=1, caching=False, long_prefill=1, full_prompt=False, preemption=preemption))
    for _ in range(2):
        bench.add(8, 2)
    return bench


def test_a_bound_ends_a_tug_of_war():
    endless = tug_of_war(None)
    endless.steps(500)
    assert not endless.scheduler.recorder.done
    bounded = tug_of_war(4)
    bounded.drain()
    assert [request.outcome for request in bounded.scheduler.recorder.done] == [Outcome.FINISHED] * 2
    assert max(request.num_preemptions for request in bounded.scheduler.recorder.done) <= 5


def test_a_victim_is_spared_once_it_was_taken_often_enough():
    bench = three_running()
    first = next(iter(bench.scheduler.running))
    first.num_preemptions = 2
    assert victim(MostKV(ENV, max_preemptions=3), bench) == 0
    assert victim(MostKV(ENV, max_preemptions=2), bench) == 2
    for request in bench.scheduler.running:
        request.num_preemptions = 2
    assert victim(MostKV(ENV, max_preemptions=2), bench) == 2  # the last: the first gets done


# ---- swap or recompute ------------------------------------------------------------------------------------------

LLAMA_8B = partial(CostBased, link_bytes_per_s=25e9, bytes_per_token=131_072, prefill_tokens_per_s=10_000)


@pytest.mark.parametrize(
    ("num_tokens", "swap_ms", "recompute_ms"), [(8192, 85.90, 819.2), (1024, 10.74, 102.4), (256, 2.68, 25.6)]
)
def test_the_price_of_both_ways(num_tokens, swap_ms, recompute_ms):
    """Scenario 15: 131,072 B a token, 25 GB/s each way, 10k tok/s."""
    policy = LLAMA_8B(ENV)
    assert round(policy.cost_s(num_tokens, PreemptMode.SWAP) * 1e3, 2) == swap_ms
    assert round(policy.cost_s(num_tokens, PreemptMode.RECOMPUTE) * 1e3, 2) == recompute_ms
    assert policy.cheapest(num_tokens) is PreemptMode.SWAP


def test_the_crossover():
    """With 20 ms each way swapping pays from 447 tokens on; at 100k tok/s it never does."""
    policy = LLAMA_8B(ENV, latency_s=0.020)
    ways = [policy.cheapest(num_tokens) for num_tokens in range(1, 9000)]
    assert ways.index(PreemptMode.SWAP) + 1 == 447
    assert set(ways[446:]) == {PreemptMode.SWAP}
    fast = LLAMA_8B(ENV, prefill_tokens_per_s=100_000)
    assert {fast.cheapest(num_tokens) for num_tokens in (1, 447, 8192, 10**6)} == {PreemptMode.RECOMPUTE}


def test_each_victim_goes_the_cheaper_way():
    """Crossover at 447: 500 tokens are swapped, 400 computed again. The least cost per byte is the larger one's."""
    bench = Bench(Settings(1000, caching=False))
    bench.add(500, 10)
    bench.add(400, 10)
    bench.step()
    large, small = bench.scheduler.running
    policy = LLAMA_8B(ENV, latency_s=0.020)
    assert (policy.mode(large), policy.mode(small)) == (PreemptMode.SWAP, PreemptMode.RECOMPUTE)
    assert victim(policy, bench) == 0
    for mode in PreemptMode:
        only = LLAMA_8B(ENV, latency_s=0.020, mode=mode.value)
        assert {only.mode(large), only.mode(small)} == {mode}


def test_shared_blocks_free_nothing():
    """0 shares all its full blocks with 1 and has 2 tokens of its own: at 20 ms a copy they are dear per byte."""
    bench = Bench(Settings(1000))
    text = list(range(512))
    for owner, tokens in enumerate(([*text, 600, 601], text + list(range(1000, 1400)))):
        bench.add(len(tokens), 10, TokenKeys(owner, tokens, 16, len(tokens)))
    bench.step()
    assert [sequence.request.num_cached_tokens for sequence in bench.scheduler.running.batch.members.values()] == [
        0,
        512,
    ]
    assert victim(LLAMA_8B(ENV, mode="swap", latency_s=0.020), bench) == 1


# ---- whatever the policy ----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workload=workloads(), name=st.sampled_from(sorted(POLICIES)))
def test_spans_and_single_steps_are_the_same_run(workload: Workload, name: str) -> None:
    chosen = replace(workload.settings, preemption=partial(POLICIES[name], mode=workload.settings.mode))

    def run_of(spans: bool) -> Run:
        own = replace(chosen, spans=spans)
        return simulate(workload.trace, own, workload.cost, workload.arrivals, workload.concurrency)

    spans, steps = run_of(spans=True), run_of(spans=False)
    assert_equal(spans, steps)
    assert_sound(spans)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (partial(LeastKV, mode="forget"), r"preemption\.mode=forget: expected recompute or swap"),
        (partial(CostBased, mode="forget"), r"preemption\.mode=forget: expected cheaper, recompute, swap"),
        (partial(MostKV, max_preemptions=0), r"preemption\.max_preemptions=0"),
        (partial(SGLangLength, headroom_steps=-1), r"preemption\.headroom_steps=-1"),
        (partial(ShortestRemaining, noise=-1.0), r"preemption\.noise=-1"),
        (partial(CostBased, link_bytes_per_s=0), r"preemption\.link_bytes_per_s=0"),
        (partial(CostBased, latency_s=-1), r"preemption\.latency_s=-1"),
    ],
)
def test_parameters_out_of_range_are_refused(policy, message):
    with pytest.raises(InputError, match=message):
        policy(ENV)
