"""Preemption by SWAP, point by point: what is copied and when, what stays, and how a victim comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from world import Bench, Settings, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.interfaces import Preemption, PreemptionPolicy, PreemptMode, Running, Shortage
from core.request import Outcome, Request, Status
from core.units import to_s
from sim.linear_cost import LinearCost

# Five blocks of 4. Request 0 (8 + 8 tokens) needs its fourth at step 5; request 1 (4 + 12) then holds the other two.
PRESSED = Settings(5, block_size=4, caching=False, mode="swap", host_blocks=4)


def pressed(chosen: Settings = PRESSED, text: bool = False) -> tuple[Bench, Request, Request]:
    """The bench right before step 5. With `text`, the prompts and outputs are known words of their own."""
    bench = Bench(chosen)
    first = bench.add(8, 8, TokenKeys(0, range(16), 4, 8) if text else None)
    second = bench.add(4, 12, TokenKeys(1, range(100, 116), 4, 4) if text else None)
    bench.steps(5)
    assert second.status is Status.RUNNING
    return bench, first, second


def test_the_copy_out_belongs_to_the_step_and_its_blocks_serve_the_requester_at_once() -> None:
    bench, first, second = pressed()
    held = [block.block_id for block in second.live[0].tables[0]]
    plan = bench.step()
    assert plan is not None
    assert plan.preempted == [second]
    assert [copy.source_id for copy in plan.swap_outs] == held
    assert sorted(copy.target_id for copy in plan.swap_outs) == [0, 1], "host blocks have ids of their own"
    assert first.live[0].tables[0][3].block_id in held, "request 0 got its block in the same step"
    assert (second.swapped.num_computed, second.live[0].num_outputs) == ([8], 5)


def test_a_swapped_request_comes_back_where_it_was() -> None:
    """It goes on in the step that brings it back, and nothing is computed again."""
    bench, first, second = pressed(replace(PRESSED, budget=12))
    bench.step()
    while second.status is Status.PREEMPTED:
        plan = bench.step()
    assert first.outcome is Outcome.FINISHED
    assert plan is not None
    assert [(copy.source_id, len(plan.swap_ins)) for copy in plan.swap_ins] == [(0, 2), (1, 2)]
    assert (plan.chunks, plan.num_decodes, plan.late) == ([], 1, second.live)
    bench.drain()
    assert second.num_produced_tokens == 12
    assert (second.num_prefill_tokens, second.num_recomputed_tokens) == (4, 0)
    assert bench.scheduler.tables.swapping.host.num_available == 4


def test_restored_tokens_cost_no_budget() -> None:
    bench, _, second = pressed(replace(PRESSED, budget=8))
    bench.scheduler.config = replace(bench.scheduler.config, max_batch_tokens=2)  # from now on: two tokens a step
    bench.drain(at_most=30)
    assert second.num_preemptions == 1
    assert second.num_prefill_tokens == 4


def test_the_victim_waits_at_the_front_and_not_in_the_step_that_preempted() -> None:
    bench, _, second = pressed()
    third = bench.add(4, 1)
    plan = bench.step()
    assert plan is not None
    assert list(bench.scheduler.waiting) == [second, third]
    assert plan.admitted == []
    assert bench.pool.num_available == 1, "room for the third, but nobody overtakes"
    bench.step()
    assert third.status is Status.WAITING


@pytest.mark.parametrize("num_evicted", [0, 1, 2])
def test_device_copies_with_content_stay_cached_and_serve_again(num_evicted: int) -> None:
    """With caching its two full blocks keep their hash. What is still there on the way back is adopted, not loaded."""
    bench, first, second = pressed(replace(PRESSED, num_blocks=6, caching=True), text=True)
    plan = bench.step()
    assert plan is not None
    assert (len(plan.swap_outs), bench.pool.num_cached) == (2, 2)
    bench.steps(2)
    assert first.outcome is Outcome.FINISHED
    # Its own were released first, so they are the next victims.
    spare = bench.pool.take(bench.pool.num_free + num_evicted, 99)
    bench.pool.release(spare[::-1], 99)
    plan = bench.step()
    assert plan is not None
    assert (len(plan.swap_ins), len(bench.decisions(Event.TOUCH))) == (num_evicted, 2 - num_evicted)
    bench.drain()
    assert (second.num_produced_tokens, second.num_recomputed_tokens) == (12, 0)


def test_without_content_they_are_free() -> None:
    bench, _, second = pressed()
    held = [block.block_id for block in second.live[0].tables[0]]
    bench.step()
    assert bench.pool.num_cached == 0
    assert bench.pool.free_queue() == held[:1], "request 0 took the tail"


def test_shared_blocks_stay_where_they_are() -> None:
    """Two requests share a prompt of two blocks: only what nobody else holds is copied out."""
    bench = Bench(Settings(6, block_size=4, mode="swap", host_blocks=8))
    prompt = [TokenKeys(owner, range(9), 4, 9) for owner in range(2)]
    first = bench.add(9, 13, prompt[0])
    bench.step()
    second = bench.add(9, 9, prompt[1])
    while second.status is not Status.PREEMPTED:
        plan = bench.step()
    assert plan is not None
    shared, own = second.swapped.tables[0][0][:2], second.swapped.tables[0][0][2:]
    assert [entry.host_id for entry in shared] == [None, None]
    assert all(entry.host_id is not None for entry in own)
    assert len(plan.swap_outs) == len(own)
    assert [bench.pool.index.get(entry.key).ref_count for entry in shared] == [1, 1], "the victim keeps no reference"
    bench.drain()
    assert (second.num_produced_tokens, second.num_recomputed_tokens) == (9, 0)
    assert first.outcome is Outcome.FINISHED


def test_a_shared_block_that_was_evicted_meanwhile_is_computed_again() -> None:
    bench = Bench(Settings(6, block_size=4, mode="swap", host_blocks=8))
    first = bench.add(9, 9, TokenKeys(0, range(9), 4, 9))
    bench.step()
    second = bench.add(9, 9, TokenKeys(1, range(9), 4, 9))
    while second.status is not Status.PREEMPTED:
        bench.step()
    bench.cancel(first)  # its references were the last
    others = bench.pool.take(6, 99)
    bench.pool.release(others, 99)
    assert len(bench.pool.index) == 0
    had_kv = second.sequences[0].num_had_kv
    bench.drain()
    assert second.num_produced_tokens == 9
    assert second.num_recomputed_tokens == had_kv > 8, "the first block is gone, and nothing after it can be used"


@pytest.mark.parametrize(("watermark", "back_at"), [(0.0, 8), (0.3, 16)])
def test_swapping_in_is_an_admission(watermark: float, back_at: int) -> None:
    """The watermark holds for it. At step 8 it needs 3 blocks and 5 are free, but 3 must stay so while others run."""
    bench = Bench(Settings(11, block_size=4, mode="swap", host_blocks=8, caching=False, watermark=watermark))
    bench.add(4, 8)
    bench.add(16, 16)
    victim = bench.add(4, 16)
    bench.drain()
    assert bench.decisions(Event.PREEMPT)[0] == (5, "PREEMPT", 2, 8)
    assert bench.decisions(Event.RESUME)[0] == (back_at, "RESUME", 2, 0)
    assert victim.num_produced_tokens == 16


def test_without_host_room_it_recomputes_and_says_so() -> None:
    bench, _, second = pressed(replace(PRESSED, host_blocks=1))
    plan = bench.step()
    assert plan is not None
    assert (plan.preempted, plan.swap_outs, second.swapped) == ([second], [], None)
    assert bench.scheduler.recorder.num_swap_fallbacks == 1
    bench.drain()
    assert second.num_recomputed_tokens == 8
    assert bench.scheduler.tables.swapping.host.num_available == 1


def test_a_step_lasts_as_long_as_its_copies_take_too() -> None:
    cost = LinearCost(1.0, swap_block_s=0.25)
    run = simulate(trace_of([0, 0], [8, 4], [8, 12]), PRESSED, cost)
    steps = run.step_arrays()
    assert [(step, n) for step, n in enumerate(steps["num_swapped_blocks"].tolist()) if n] == [(5, 2), (8, 2)]
    assert [steps["duration_s"][step] for step in (4, 5, 6, 8)] == [1, 1.5, 1, 1.5]
    assert to_s(run.request(1).finish_ps) == run.num_steps + 1


class FirstInLine(PreemptionPolicy):
    """Swaps the first running request out, though it has been scheduled in this step."""

    def select(self, running: Running, shortage: Shortage, for_request: Request) -> Preemption | None:
        return Preemption(next(r for r in running if r is not for_request), PreemptMode.SWAP)


def test_copies_on_write_of_a_cancelled_schedule_are_taken_back() -> None:
    """Copy-outs precede copies on the device: a copy that will not happen must not be what is saved.

    Two samples fork from a prompt with a partial tail, and one is given a copy of it; then another request's need
    cancels both.
    """
    bench = Bench(Settings(5, block_size=4, caching=False, preemption=FirstInLine, host_blocks=8))
    samples = bench.add(6, 4, num_samples=2)
    other = bench.add(8, 4)
    bench.step()
    tails = [sequence.tables[0][1] for sequence in samples.live]
    assert tails[0] is tails[1]
    plan = bench.step()
    assert plan is not None
    assert plan.preempted == [samples]
    assert plan.copies == []
    assert sorted(copy.source_id for copy in plan.swap_outs) == [0, 1], "the prompt's two blocks, once"
    bench.drain()
    assert (samples.num_produced_tokens, other.num_produced_tokens) == (8, 4)
    assert samples.num_recomputed_tokens == 0


@pytest.mark.parametrize(("num_samples", "num_blocks"), [(2, 9), (3, 12)])
def test_samples_come_back_together(num_samples: int, num_blocks: int) -> None:
    bench = Bench(Settings(num_blocks, block_size=4, caching=False, mode="swap", host_blocks=20))
    first = bench.add(8, 24)
    samples = bench.add(6, 10, num_samples=num_samples)
    bench.drain(at_most=100)
    assert samples.num_preemptions >= 1
    assert (first.num_produced_tokens, samples.num_produced_tokens) == (24, 10 * num_samples)
    assert samples.num_recomputed_tokens == 0
