"""What people who tune KV-cache policies really meet, each with its exact value, through the simulator.

Numbers are those of the acceptance scenarios. Steps take one second, whatever they do, unless a test says otherwise.
"""

from __future__ import annotations

import numpy as np
import pytest
from world import Bench, Run, Settings, simulate, trace_of

import kvtwin
from core.decision_log import Event
from core.interfaces import Block, EvictionPolicy, PriorityEviction
from core.request import Outcome, Status
from policies.eviction.fifo import FIFO
from policies.eviction.lru import LRU
from sim.linear_cost import LinearCost
from traces.replay import Arrivals

UNBOUNDED = None


def referenced_blocks(run: Run) -> list[int]:
    """Blocks in use while each step ran."""
    return run.step_arrays()["num_referenced_blocks"].tolist()


def hit_tokens(run: Run) -> list[int]:
    return [request.num_cached_tokens for request in run.requests()]


def test_scenario_1_the_last_token_needs_no_block() -> None:
    """KV peaks at 33 + 16 - 1 = 48 tokens: three blocks of 16, not ceil(49 / 16) = 4."""
    run = simulate(trace_of([0], [33], [16]), Settings(num_blocks=3))
    assert run.request(0).outcome is Outcome.FINISHED
    assert run.num_steps == 16, "a prefill and 15 decodes"
    assert max(referenced_blocks(run)) == 3
    assert run.num_preemptions == 0

    one_token_more = trace_of([0], [33], [17])
    assert max(referenced_blocks(simulate(one_token_more, Settings(num_blocks=4)))) == 4
    too_small = simulate(one_token_more, Settings(num_blocks=3)).request(0)
    assert too_small.outcome is Outcome.REJECTED, "it could never run, and would block the queue for ever"
    assert too_small.reject_reason == "needs 4 blocks, the pool has 3"


def test_scenario_1_no_attempt_to_allocate_fails() -> None:
    bench = Bench(Settings(num_blocks=3))
    bench.add(33, 16)
    plans = bench.steps(16)
    assert [plan.blocked for plan in plans if plan is not None] == [[]] * 16


def test_scenario_4_blocks_need_not_lie_together() -> None:
    """Ten cells; A=4, B=3, C=3; A and C go: D=5 fits beside B although the largest hole has 4 cells. Nothing moves."""
    bench = Bench(Settings(num_blocks=10, block_size=1, caching=False))
    a, b, c = (bench.add(num_tokens, 5) for num_tokens in (4, 3, 3))
    bench.step()
    assert bench.pool.num_available == 0
    bench.cancel(a)
    bench.cancel(c)
    d = bench.add(5, 1)
    plan = bench.step()
    assert plan is not None
    assert d.outcome is Outcome.FINISHED
    assert b.status is Status.RUNNING
    assert list(plan.moves) == list(plan.compactions) == []


@pytest.mark.parametrize(("num_tokens", "waste_tokens"), [(17, 15), (16, 0)])
def test_scenario_4_only_a_last_block_is_partly_empty(num_tokens: int, waste_tokens: int) -> None:
    """17 tokens leave 15 of 32 slots empty, 16 none; unused blocks of the pool are no waste."""
    run = simulate(trace_of([0], [num_tokens], [1]), Settings(num_blocks=1000))
    assert referenced_blocks(run)[0] * 16 - num_tokens == waste_tokens


@pytest.mark.parametrize(("num_prompt", "while_prefilling"), [(100, 7), (96, 6)])
def test_scenario_6_samples_share_the_full_blocks_of_their_prompt(num_prompt: int, while_prefilling: int) -> None:
    """Four samples, 20 tokens each: 6 shared blocks + 4 of their own after the prefill, 6 + 4 x 2 in the end, not 32.

    A partial last block of the prompt (100 = 6 x 16 + 4) stays shared until each sample writes to it.
    """
    run = simulate(trace_of([0], [num_prompt], [20], num_samples=[4]), Settings(num_blocks=40, caching=False))
    in_use = referenced_blocks(run)
    assert in_use[0] == while_prefilling, "the prompt is computed once"
    assert in_use[1] == 10, "the first decodes"
    assert max(in_use) == in_use[-1] == 14
    assert run.num_prefill_tokens == num_prompt
    assert run.request(0).num_produced_tokens == 4 * 20
    num_copies = len(run.decisions(Event.COPY))
    assert num_copies == (3 if num_prompt % 16 else 0), "the last writer keeps the original"


def test_scenario_6_four_requests_that_share_by_the_prefix_cache_need_more() -> None:
    """A hit leaves the last block of an aligned prompt to each of them: 5 + 4 x 3 instead of 6 + 4 x 2."""
    trace = trace_of([0] * 4, [96] * 4, [20] * 4, segments=[[(0, 96)]] * 4)
    assert max(referenced_blocks(simulate(trace, Settings(num_blocks=40)))) == 17


@pytest.mark.parametrize(
    ("full_prompt", "num_preemptions", "num_prefill_tokens"), [(False, 52, 34_654), (True, 0, 8_000)]
)
def test_scenario_9_admitting_on_the_first_chunk_brings_a_storm(
    full_prompt: bool, num_preemptions: int, num_prefill_tokens: int
) -> None:
    """Four prompts of 1,600 tokens fill 400 of 460 blocks. The fifth's first chunk fits, the whole of it does not."""
    trace = trace_of([0] * 5, [1600] * 5, [200] * 5)
    run = simulate(trace, Settings(num_blocks=460, budget=512, caching=False, full_prompt=full_prompt))
    requests = run.requests()
    assert [request.num_preemptions for request in requests] == [0, 0, 0, 0, num_preemptions]
    assert run.num_prefill_tokens == num_prefill_tokens
    assert sum(request.num_recomputed_tokens for request in requests) == num_prefill_tokens - 8_000
    assert requests[4].first_token_ps == 207 * 10**12, "nothing is won by it"
    assert run.num_steps == 406


@pytest.mark.parametrize(("caching", "hit", "num_prefill_tokens"), [(True, 20, 37), (False, 0, 57)])
def test_scenario_11_preempted_blocks_can_be_hit_until_they_are_reused(
    caching: bool, hit: int, num_prefill_tokens: int
) -> None:
    """A and B outgrow 12 blocks of 4. B comes back with 25 tokens, of which its old blocks still hold 20."""
    run = simulate(trace_of([0, 0], [16, 16], [13, 13]), Settings(num_blocks=12, block_size=4, caching=caching))
    assert run.decisions(Event.PREEMPT, Event.RESUME) == [(9, "PREEMPT", 1, 24), (13, "RESUME", 1, hit)]
    assert run.decisions(Event.CHUNK)[-1] == (13, "CHUNK", 1, 25 - hit)
    assert run.num_prefill_tokens == num_prefill_tokens
    assert [request.finish_ps for request in run.requests()] == [13 * 10**12, 17 * 10**12]


@pytest.mark.parametrize("urgency", [0, 5])
def test_scenario_13_slots_are_not_taken_away(urgency: int) -> None:
    """One slot, held by a request of priority 5: whoever comes later waits for it, urgent or not (as in vLLM)."""
    trace = trace_of([0, 10], [16, 16], [100, 5], priority=[5, urgency])
    run = simulate(trace, Settings(num_blocks=100, max_num_seqs=1, priority=True))
    assert run.num_preemptions == 0
    assert run.request(1).first_scheduled_ps == run.request(0).finish_ps == 100 * 10**12


@pytest.mark.parametrize(
    ("num_tokens", "swap_ms", "recompute_ms"), [(8192, 85.90, 819.2), (1024, 10.74, 102.4), (256, 2.68, 25.6)]
)
def test_scenario_15_what_a_preemption_costs_by_swap_and_by_recompute(
    num_tokens: int, swap_ms: float, recompute_ms: float
) -> None:
    """Llama-3.1-8B in bf16: 131,072 bytes a token, 25 GB/s each way; 10,000 prompt tokens a second.

    The pool holds two prompts and not a token more. The second gives way when the first decodes; steps are free.
    """
    cost = LinearCost(1e-12, prefill_token_s=1e-4, swap_block_s=16 * 131_072 / 25e9)
    num_blocks = 2 * num_tokens // 16
    spent_ms = {}
    for mode in ("swap", "recompute"):
        settings = Settings(num_blocks, budget=2 * num_tokens, caching=False, mode=mode, host_blocks=num_blocks)
        run = simulate(trace_of([0, 0], [num_tokens] * 2, [3, 3]), settings, cost)
        assert run.num_preemptions == 1
        spent_ms[mode] = float(run.step_arrays()["duration_s"][1:].sum() * 1000)
    assert spent_ms["swap"] == pytest.approx(swap_ms, abs=0.005)
    assert spent_ms["recompute"] == pytest.approx(recompute_ms + 0.1), "its output so far is a token more"


def test_scenario_18_a_long_prompt_takes_what_the_decodes_leave() -> None:
    """Eight tokens a step and three decodes: 20 prompt tokens go in chunks of 5, and nobody's tokens are delayed."""
    trace = trace_of([0, 0, 0, 2], [4, 4, 4, 20], [12, 12, 12, 1])
    run = simulate(trace, Settings(num_blocks=100, budget=8, caching=False))
    chunks = [(step, num_new) for step, _, request, num_new in run.decisions(Event.CHUNK) if request == 3]
    assert chunks == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert run.request(2).first_scheduled_ps == 1 * 10**12, "the third decoder did not fit into the first step"
    assert run.request(3).first_token_ps == 6 * 10**12, "no token before the last chunk"
    assert run.gaps_s() == [1.0] * (3 * 11), "the decoders get a token every step"


def test_scenario_20_cancelled_requests_leave_nothing_behind() -> None:
    """R1 and R2 run, R3 waits for a slot. R3 goes at 2 s, R1 at 5 s, R2 at 8 s."""
    cancel_after_ps = [5 * 10**12, 8 * 10**12, 2 * 10**12]
    trace = trace_of([0, 0, 0], [16] * 3, [100] * 3, cancel_after_ps=cancel_after_ps)
    run = simulate(trace, Settings(num_blocks=100, block_size=4, max_num_seqs=2))
    requests = run.requests()
    assert [request.num_prefill_tokens for request in requests] == [16, 16, 0]
    assert [request.outcome for request in requests] == [Outcome.CANCELLED] * 3
    assert [request.finish_ps for request in requests] == cancel_after_ps
    assert run.scheduler.tables.pool.num_referenced == 0


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_scenario_20_any_state_can_be_cancelled_twice(mode: str) -> None:
    bench = Bench(Settings(num_blocks=8, block_size=4, budget=6, max_num_seqs=2, mode=mode, host_blocks=8))
    decoding, prefilling, waiting = bench.add(4, 20), bench.add(12, 20), bench.add(4, 20)
    bench.step()
    assert (len(bench.scheduler.running), len(bench.scheduler.waiting)) == (2, 1)
    assert 0 < prefilling.live[0].num_computed < 12
    for request in (waiting, prefilling, decoding, decoding):
        bench.cancel(request)
    assert bench.pool.num_referenced == 0

    survivor, victim = bench.add(4, 20), bench.add(4, 20)
    while victim.status is not Status.PREEMPTED:
        bench.step()
    bench.cancel(victim)
    bench.cancel(victim)
    bench.drain()
    assert survivor.outcome is Outcome.FINISHED
    assert victim.outcome is Outcome.CANCELLED
    assert bench.scheduler.tables.swapping.host.num_available == 8
    assert len(bench.scheduler.recorder.done) == 5, "each of the five is done once"


@pytest.mark.parametrize(("num_prompt", "num_hit", "num_prefill"), [(64, 432, 208), (65, 576, 74)])
def test_scenario_22_a_full_hit_still_computes_something(num_prompt: int, num_hit: int, num_prefill: int) -> None:
    """Ten equal prompts. At 64 tokens the last of four blocks is always computed again; at 65 only the last token."""
    ids = list(range(-(-num_prompt // 16)))
    trace = trace_of([0] * 10, [num_prompt] * 10, [1] * 10, [ids] * 10, hash_block_tokens=16)
    run = simulate(trace, Settings(num_blocks=100), arrivals=Arrivals.SEQUENTIAL)
    assert sum(hit_tokens(run)) == num_hit
    assert run.num_prefill_tokens == num_prefill
    assert run.num_steps == 10, "one for each, none of them empty"


@pytest.mark.parametrize(
    ("block_size", "hit_ratio"),
    [(16, 0.792), (32, 0.7392), (64, 0.6336), (128, 0.4224), (240, 0.792), (256, 0.0), (784, 0.0)],
)
def test_scenario_23_a_shared_prefix_shorter_than_a_block_cannot_hit(block_size: int, hit_ratio: float) -> None:
    """A hundred prompts of 300 tokens share their first 240: whole blocks of them."""
    segments = [[(0, 240), (1000 + 60 * row, 60)] for row in range(100)]
    trace = trace_of([0] * 100, [300] * 100, [1] * 100, segments=segments)
    run = simulate(trace, Settings(UNBOUNDED, block_size=block_size), arrivals=Arrivals.SEQUENTIAL)
    assert sum(hit_tokens(run)) / (100 * 300) == hit_ratio


def test_scenario_25_unique_prompts_show_no_hits() -> None:
    """What preempted requests find of their own is told apart: counted in, it would look like 4 % of prefix hits."""
    trace = trace_of([0] * 12, [64] * 12, [64] * 12)
    run = simulate(trace, Settings(num_blocks=40, budget=256))
    assert hit_tokens(run) == [0] * 12
    assert run.num_preemptions == 5
    assert sum(request.num_readmission_cached_tokens for request in run.requests()) == 48


class SecondBlockFirst(PriorityEviction):
    """Evicts the block that the trace calls 2 before all others."""

    def priority(self, block: Block) -> float:
        return float(block.key != 2)


@pytest.mark.parametrize(("eviction", "hit"), [(LRU, 8), (FIFO, 0)])
def test_scenario_28_tails_go_before_heads(eviction: type[EvictionPolicy], hit: int) -> None:
    """A prompt of four blocks fills the pool; another needs two. FIFO takes the head: what is left is useless."""
    ids = [[1, 2, 3, 4], [5, 6], [1, 2, 3, 4]]
    trace = trace_of([0, 10, 20], [16, 8, 16], [1, 1, 1], ids, hash_block_tokens=4)
    run = simulate(trace, Settings(num_blocks=4, block_size=4, eviction=eviction))
    assert hit_tokens(run) == [0, 0, hit]


def test_scenario_28_a_gap_ends_the_hit() -> None:
    """Of the blocks 1, 2, 3, 4 the second goes: one block is hit, not three."""
    ids = [[1, 2, 3, 4, 9], [5, 6], [1, 2, 3, 4, 8]]
    trace = trace_of([0, 10, 20], [17, 8, 17], [1, 1, 1], ids, hash_block_tokens=4)
    run = simulate(trace, Settings(num_blocks=5, block_size=4, eviction=SecondBlockFirst))
    assert len([decision for decision in run.decisions(Event.EVICT) if decision[0] == 1]) == 1, "one block made room"
    assert hit_tokens(run) == [0, 0, 4]


def num_hits(text: str, eviction: type[EvictionPolicy], capacity: int) -> int:
    """Hits of a cache of `capacity` objects on a sequence of them, a letter an object.

    A letter is a prompt of one full block and one token more, whose block nobody caches: hence one beside the cache.
    """
    ids = [[ord(letter), 1000 + place] for place, letter in enumerate(text)]
    num = len(text)
    trace = trace_of([0] * num, [5] * num, [1] * num, ids, hash_block_tokens=4)
    settings = Settings(num_blocks=capacity + 1, block_size=4, eviction=eviction)
    return sum(hit == 4 for hit in hit_tokens(simulate(trace, settings, arrivals=Arrivals.SEQUENTIAL)))


SCAN = "ABABxyzABuvwABpqrAB"
BELADY = "ABCDABEABCDE"


@pytest.mark.parametrize(
    ("text", "eviction", "hits"),
    [
        (SCAN, LRU, {3: 2, 5: 8, 99: 8}),
        (SCAN, FIFO, {3: 2, 5: 6, 99: 8}),
        (BELADY, LRU, {3: 2, 4: 4, 5: 7, 99: 7}),
        (BELADY, FIFO, {3: 3, 4: 2, 99: 7}),  # more room, fewer hits: the anomaly
    ],
)
def test_scenario_31_textbook_sequences(text: str, eviction: type[EvictionPolicy], hits: dict[int, int]) -> None:
    assert {capacity: num_hits(text, eviction, capacity) for capacity in hits} == hits


def test_scenario_31_lru_never_loses_by_more_room() -> None:
    for text in (SCAN, BELADY):
        hits = [num_hits(text, LRU, capacity) for capacity in range(1, 16)]
        assert hits == sorted(hits)


def test_scenario_42_usage_counts_references_and_residency_counts_content() -> None:
    """A hundred usable blocks: 50 with content that nobody references, 25 in use."""
    run = simulate(trace_of([0, 10], [800, 400], [1, 2]), Settings(num_blocks=100))
    steps = run.step_arrays()
    assert [steps[f"num_{state}_blocks"][1] for state in ("referenced", "cached", "free")] == [25, 50, 25]
    assert steps["num_referenced_blocks_after"][-1] == 0, "usage falls to 0 with the last request"
    assert steps["num_cached_blocks_after"][-1] == 75, "and what was cached stays"


@pytest.mark.parametrize("fast_forward", [True, False])
def test_scenario_57_the_golden_mini_run(fast_forward: bool) -> None:
    """A step takes 10 ms + 0.1 ms a prefill token + 1 ms a decode. R1: 100 + 3 tokens at 0; R2: 50 + 2 at 15 ms."""
    run = kvtwin.simulate(
        trace_of([0, 0.015], [100, 50], [3, 2]),
        cost="linear",
        pool={"num_blocks": 20, "block_size_tokens": 16},
        scheduler={"max_batch_tokens": 128, "prefix_caching": False},
        overrides=[
            "cost.constant_s=0.010",
            "cost.prefill_token_s=0.0001",
            "cost.decode_sequence_s=0.001",
            "cost.context_token_s=0",
            f"fast_forward={str(fast_forward).lower()}",
        ],
    )
    steps, requests, metrics = run.steps, run.requests, run.summary["metrics"]
    ends_s = steps["start_s"] + steps["duration_s"]
    np.testing.assert_allclose(ends_s, [0.020, 0.036, 0.048], rtol=1e-12)
    np.testing.assert_array_equal(steps["num_prefill_tokens"], [100, 50, 0])
    np.testing.assert_array_equal(steps["num_decode_seqs"], [0, 1, 2])
    np.testing.assert_array_equal(steps["num_referenced_blocks"], [7, 11, 11])
    np.testing.assert_allclose(requests["first_token_s"], [0.020, 0.036], rtol=1e-12)
    np.testing.assert_allclose(requests["finish_s"], [0.048, 0.048], rtol=1e-12)
    np.testing.assert_allclose(requests["first_token_s"] - requests["arrival_s"], [0.020, 0.021], rtol=1e-12)
    np.testing.assert_allclose(requests["finish_s"] - requests["arrival_s"], [0.048, 0.033], rtol=1e-12)

    def spread(name: str) -> list[float]:
        return [metrics[name][figure] for figure in ("mean", "p50", "max")]

    assert spread("ttft_s") == pytest.approx([0.0205, 0.0205, 0.021])
    assert spread("tpot_s") == pytest.approx([0.013, 0.013, 0.014])
    assert spread("itl_s") == pytest.approx([(0.016 + 2 * 0.012) / 3, 0.012, 0.016])
    assert spread("e2e_s") == pytest.approx([0.0405, 0.0405, 0.048])
    assert metrics["makespan_s"] == pytest.approx(0.048)
    assert metrics["output_tokens_per_s"] == pytest.approx(104.17, abs=0.005)
    assert metrics["kv_utilization_ratio"]["peak"] == 11 / 20
    assert metrics["kv_utilization_ratio"]["time_mean"] == pytest.approx(0.4667, abs=0.00005)
    assert metrics["prefix_hit_ratio"] is None, "caching is off, and the trace says nothing of prefixes"
