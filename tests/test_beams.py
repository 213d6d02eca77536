"""Beam search: beams share blocks, fork and are dropped; whatever memory does, they are those of a dense search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from dense_reference import reference_logits
from engine_world import TINY, EngineSetup, assert_lockstep, run_trace, tiny_decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from test_architectures import ARCHITECTURES, decoder, pool_for, shared_prefix_trace
from test_engine_model import as_reference
from workloads import Workload, workloads
from world import UNIT_STEPS, Bench, Run, Settings, check_integrity, scheduler_of, simulate, trace_of

from core.content import TokenKeys
from core.decision_log import Event
from core.errors import InputError
from core.plan import StepPlan, StepResult
from core.request import Outcome, Request, Status
from core.scheduler import Scheduler
from core.source import Input, InputKind, RequestSource
from core.units import PS_PER_S
from engine import executor as executor_module
from engine.beams import best_continuations, placed
from engine.draws import Sampling
from engine.output_mode import EndOfSequence, ForcedTokens
from engine.sampling import sample, uniform_draws
from sim.beam_model import BeamModel, RandomBeams
from sim.cost_model import CostModel
from sim.simulation import run_simulation
from traces.replay import ReplayConfig, TraceSource
from traces.schema import Trace

# ---- the control plane ----------------------------------------------------------------------------------------------


def advance(bench: Bench, parents: Mapping[int, int] = {}) -> StepPlan:
    """One step, after which beams go on from others."""
    plan = bench.scheduler.schedule(bench.now_ps)
    check_integrity(bench.scheduler)
    assert plan is not None
    bench.scheduler.commit(plan, StepResult((PS_PER_S,), parents=parents))
    bench.now_ps += PS_PER_S
    check_integrity(bench.scheduler)
    return plan


def tables(request: Request) -> list[list[int]]:
    return [[block.block_id for block in sequence.tables[0]] for sequence in request.live]


def test_a_dropped_beam_frees_what_it_had_and_shares_what_another_has() -> None:
    """Blocks of 4, a prompt of 6: block 0 is full and shared. After two decodes beam 2 goes on from beam 0."""
    bench = Bench(Settings(20, block_size=4, caching=False))
    search = bench.add(6, 8, num_samples=3, is_beam_search=True)
    assert list(advance(bench).searches) == [], "the prompt: nobody decodes yet"
    assert tables(search) == [[0, 1], [0, 1], [0, 1]]
    plan = advance(bench)
    assert list(plan.searches) == [search]
    assert tables(search) == [[0, 2], [0, 3], [0, 1]], "the last to write keeps the original"
    plan = advance(bench, {2: 0})
    assert tables(search) == [[0, 2], [0, 3], [0, 2]], "block 1 is free; nothing is copied before somebody writes"
    assert bench.pool.num_referenced == 3
    plan = advance(bench, {0: 1, 2: 1})
    assert [tuple(copy) for copy in plan.copies] == [], "its block was full: the next token starts another"
    assert tables(search) == [[0, 3, 4], [0, 3, 4], [0, 3, 4]]
    assert bench.pool.num_referenced == 3
    plan = advance(bench)
    assert len(plan.copies) == 2
    bench.drain()
    assert (search.outcome, search.num_produced_tokens) == (Outcome.FINISHED, 24)
    assert bench.pool.num_referenced == 0


def test_what_beams_say_is_not_published() -> None:
    """A block of a beam's output may belong to another one's text a step later; only the prompt can be hit."""
    bench = Bench(Settings(20, block_size=4))
    search = bench.add(9, 9, num_samples=2, is_beam_search=True)
    advance(bench)
    for _ in range(5):
        advance(bench, {1: 0})
    assert [block.key is not None for block in search.live[0].tables[0]] == [True, True, False, False]


@pytest.mark.parametrize(("mode", "host_blocks"), [("recompute", 0), ("swap", 2), ("swap", 20)])
def test_a_search_that_lost_its_kv_begins_again_from_its_prompt(mode: str, host_blocks: int) -> None:
    """Beams that came back one by one could not be compared. With room on the host they come back together."""
    chosen = Settings(9, block_size=4, mode=mode, host_blocks=host_blocks, caching=False, full_prompt=False)
    bench = Bench(chosen)
    first = bench.add(8, 17)
    search = bench.add(5, 9, num_samples=2, is_beam_search=True)
    bench.drain(at_most=100)
    assert search.num_preemptions > 0
    assert (first.num_produced_tokens, search.num_produced_tokens) == (17, 18)
    num_fallbacks = bench.scheduler.recorder.num_swap_fallbacks
    if host_blocks == 20:
        assert (num_fallbacks, search.num_recomputed_tokens) == (0, 0)
        assert len(bench.decisions(Event.SWAP_IN)) > 0
    else:
        assert search.num_recomputed_tokens > 0
        assert num_fallbacks == (search.num_preemptions if mode == "swap" else 0)


def test_a_swapped_search_that_lost_a_shared_block_begins_again_too() -> None:
    """Its prompt was shared with another request, stayed behind, and is evicted: what lies on the host is of no use."""
    bench = Bench(Settings(8, block_size=4, mode="swap", host_blocks=20, full_prompt=False))
    first = bench.add(9, 17, TokenKeys(0, range(9), 4, 9))
    bench.step()
    search = bench.add(9, 9, TokenKeys(1, range(9), 4, 9), num_samples=2, is_beam_search=True)
    while search.status is not Status.PREEMPTED:
        bench.step()
    num_known = search.live[0].num_known
    assert num_known > 10
    bench.cancel(first)
    others = bench.pool.take(8, 99)
    bench.pool.release(others, 99)
    bench.step()
    assert search.swapped is None
    assert search.num_recomputed_tokens == 2 * (num_known - 10) + 9, "outputs of both beams, and the prompt"
    bench.drain()
    assert search.num_produced_tokens == 18
    assert bench.scheduler.tables.swapping.host.num_available == 20


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (Settings(100, budget=3), "4 beams advance together, and exceed max_batch_tokens=3"),
        (Settings(100, max_num_seqs=3), "4 samples exceed max_num_seqs=3"),
        (Settings(6, block_size=4), "needs 9 blocks, the pool has 6"),
        (Settings(100, asynchronous=True), "wants 4 samples: async scheduling serves one a request"),
    ],
)
def test_searches_that_cannot_run_end_with_a_reason(chosen: Settings, reason: str) -> None:
    bench = Bench(chosen)
    request = bench.request(4, 8, num_samples=4, is_beam_search=True)
    assert not bench.scheduler.add(request, 0)
    assert (request.outcome, request.reject_reason) == (Outcome.REJECTED, reason)


# ---- in the simulator -----------------------------------------------------------------------------------------------


class SomeSearches(RequestSource):
    """Every other request of a trace is a beam search."""

    def __init__(self, trace: Trace, config: ReplayConfig) -> None:
        self._source = TraceSource(trace, config)

    def next_ps(self) -> int | None:
        return self._source.next_ps()

    def pop_due(self, now_ps: int) -> Iterator[Input]:
        for due in self._source.pop_due(now_ps):
            if due.kind is InputKind.ARRIVE and due.request.request_id % 2 == 0:
                due.request.num_samples, due.request.is_beam_search = 3, True
            yield due

    def on_done(self, request: Request, now_ps: int) -> None:
        self._source.on_done(request, now_ps)


class Watched(CostModel):
    """Proves the pool's books at every step."""

    def __init__(self, cost: CostModel, scheduler: Scheduler) -> None:
        self._cost = cost
        self._scheduler = scheduler

    def step_ps(self, work: Any) -> int:
        check_integrity(self._scheduler)
        return self._cost.step_ps(work)


def simulate_searches(workload: Workload, drop_ratio: float, spans: bool) -> Run:
    chosen = replace(workload.settings, spans=spans, asynchronous=False, keep_cancelled=False)
    scheduler = scheduler_of(chosen)
    config = ReplayConfig(chosen.block_size, workload.arrivals, workload.concurrency)
    cost = workload.cost if spans else Watched(workload.cost, scheduler)
    run_simulation(SomeSearches(workload.trace, config), scheduler, cost, RandomBeams(drop_ratio))
    return Run(scheduler, workload.trace.num_requests)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workload=workloads(), drop_ratio=st.sampled_from([0.0, 0.3, 0.9]))
def test_searches_among_others_under_any_policy(workload: Workload, drop_ratio: float) -> None:
    """With and without fast-forwarding the same decisions; nothing is lost, nobody waits for ever."""
    spans, steps = (simulate_searches(workload, drop_ratio, on) for on in (True, False))
    assert spans.scheduler.log.digest() == steps.scheduler.log.digest()
    assert [r.finish_ps for r in spans.requests()] == [r.finish_ps for r in steps.requests()]
    check_integrity(spans.scheduler)
    assert spans.scheduler.tables.pool.num_referenced == 0
    for request in spans.requests():
        assert request.outcome is not Outcome.UNFINISHED
        if request.outcome is Outcome.FINISHED:
            assert request.num_produced_tokens == request.num_output_tokens * request.num_samples


class Counted(BeamModel):
    def __init__(self, beams: BeamModel) -> None:
        self.num_beams = self.num_drops = 0
        self._beams = beams

    def parents(self, plan: StepPlan) -> Mapping[int, int]:
        parents = self._beams.parents(plan)
        self.num_beams += sum(len(request.live) for request in plan.searches)
        self.num_drops += len(parents)
        assert not set(parents) & set(parents.values()), "whom others go on from stays as it is"
        return parents


def test_nothing_is_shared_any_more_when_the_samples_have_ended() -> None:
    """A request of one sample goes on alone, in steps that are taken in one stride or one by one."""
    trace = trace_of([0, 0], [40, 33], [5, 30], num_samples=[4, 1])
    for spans in (True, False):
        run = simulate(trace, Settings(64, caching=False, spans=spans))
        assert run.step_arrays()["num_shared_references"].tolist() == [0, 6, 6, 6, 6] + [0] * 25


@pytest.mark.parametrize(("drop_ratio", "saved"), [(0.0, 0.456), (0.25, 0.66), (0.5, 0.669)])
def test_the_more_beams_are_dropped_the_more_they_share(drop_ratio: float, saved: float) -> None:
    """Four beams over a prompt of 100 and 100 outputs. The chance is what is realised, and no fork adds a block."""
    beams = Counted(RandomBeams(drop_ratio, seed=3))
    scheduler = scheduler_of(Settings(None, caching=False))
    config = ReplayConfig(16, beam_width=4)
    run_simulation(TraceSource(trace_of([0] * 5, [100] * 5, [100] * 5), config), scheduler, UNIT_STEPS, beams)
    columns = Run(scheduler, 5).step_arrays()
    shared, used = columns["num_shared_references"], columns["num_referenced_blocks"]
    assert beams.num_drops / beams.num_beams == pytest.approx(drop_ratio, abs=0.02)
    assert shared.sum() / (shared + used).sum() == pytest.approx(saved, abs=0.002)


# ---- on the engine --------------------------------------------------------------------------------------------------


def test_the_best_of_all_continuations() -> None:
    """Two beams, four tokens; equals go by beam, then by token."""
    logits = torch.tensor([[0.0, 1.0, 1.0, -9.0], [3.0, 0.0, 0.0, 0.0]])
    best, margin = best_continuations(logits, [-1.0, -1.5], 3)
    assert [(each.parent, each.token_id) for each in best] == [(1, 0), (0, 1), (0, 2)]
    assert best[0].score == pytest.approx(-1.5 + torch.log_softmax(logits[1], 0)[0].item())
    assert margin == pytest.approx(1.0)
    assert [each.parent for each in placed(best[1:], 2)] == [0, 0], "the second takes the place of the dropped beam"


def dense_search(prompt: list[int], num_outputs: int, width: int) -> tuple[list[tuple[float, list[int]]], float]:
    """Beams with their scores, best first, no cache and no sharing; and the least margin by which one was kept."""
    beams, least = [(0.0, list(prompt))], float("inf")
    for _ in range(num_outputs):
        grown = []
        for score, text in beams:
            values = torch.log_softmax(reference_logits(reference(), text)[-1].double(), dim=-1)
            grown += [(score + value, [*text, token]) for token, value in enumerate(values.tolist())]
        grown.sort(key=lambda beam: -beam[0])
        beams, least = grown[:width], min(least, grown[width - 1][0] - grown[width][0])
    return [(score, text[len(prompt) :]) for score, text in beams], least


@cache
def reference() -> Any:
    return as_reference(TINY, tiny_decoder().weights)


PROMPTS = trace_of([0, 0.001, 0.004], [21, 30, 9], [14, 10, 12], segments=[[(500, 21)], [(500, 30)], [(900, 9)]])
ROOMY = Settings(200, block_size=4)
CONDITIONS = {
    "roomy": ROOMY,
    "uncached, in chunks": replace(ROOMY, caching=False, budget=7, long_prefill=5),
    "preempted": Settings(20, block_size=4, full_prompt=False, budget=40),
    "preempted, swapped": Settings(20, block_size=4, full_prompt=False, budget=40, mode="swap", host_blocks=50),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_beams_are_those_of_a_dense_search(condition: str) -> None:
    """Tokens and scores of three searches of width 3; shadow tags on, and in lockstep with the simulator."""
    setup = EngineSetup(CONDITIONS[condition], beam_width=3)
    run = run_trace(PROMPTS, setup)
    assert (run.num_of(Event.PREEMPT) > 0) == ("preempted" in condition)
    assert run.executor.beams.num_drops > 20
    assert run.num_of(Event.COPY) > 20
    assert run.shadow.num_checked["copy"] > 0
    assert (run.shadow.num_checked["swap_in"] > 0) == ("swapped" in condition)
    for request in run.scheduler.recorder.done:
        ranked = [tokens for _, tokens in run.executor.tokens.ranked(request.request_id)]
        prompt = ranked[0].known[: request.num_prompt_tokens].tolist()
        expected, margin = dense_search(prompt, request.num_output_tokens, 3)
        assert margin > 1e-5, "not a matter of rounding"
        assert [tokens.outputs.tolist() for tokens in ranked] == [tokens for _, tokens in expected]
        scores = [tokens.score for tokens in ranked]
        assert scores == pytest.approx([score for score, _ in expected], abs=1e-4)
    assert_lockstep(PROMPTS, setup, run)


@pytest.mark.parametrize("name", ["gemma3", "mla"])
def test_beams_on_windows_and_on_latents(name: str) -> None:
    """The same beams with ample memory and under preemption; tags checked, decisions repeated by the simulator."""
    settings = Settings(300, block_size=4, groups=ARCHITECTURES[name].kv_groups())
    setup = EngineSetup(settings, decoder=lambda: decoder(name), beam_width=3)
    tight = replace(setup, settings=replace(settings, num_blocks=pool_for(name), budget=40, full_prompt=False))
    ample, pressed = run_trace(shared_prefix_trace(), setup), run_trace(shared_prefix_trace(), tight)
    assert (ample.num_of(Event.PREEMPT), pressed.num_of(Event.PREEMPT) > 0) == (0, True)
    beams = ({row: sorted(samples) for row, samples in run.outputs().items()} for run in (ample, pressed))
    assert next(beams) == next(beams)
    assert_lockstep(shared_prefix_trace(), tight, pressed)


def test_a_near_tie_is_told_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = EngineSetup(ROOMY, beam_width=3)
    plain = run_trace(PROMPTS, setup)
    monkeypatch.setattr(executor_module, "NEAR_TIE_LOGITS", 1e9)
    tied = run_trace(PROMPTS, setup)
    assert tied.outputs() == plain.outputs()
    assert tied.executor.num_near_ties == tied.executor.num_sampled == 3 * (14 + 10 + 12)


def test_a_search_of_width_one_is_greedy() -> None:
    greedy, search = (run_trace(PROMPTS, EngineSetup(ROOMY, beam_width=width)) for width in (None, 1))
    assert search.outputs() == greedy.outputs()
    assert search.executor.beams.num_drops == 0


def test_cancelled_while_its_step_runs() -> None:
    trace = replace(PROMPTS, cancel_after_ps=np.array([5 * 10**9, -1, 7 * 10**9]))
    setup = EngineSetup(ROOMY, beam_width=3)
    run = run_trace(trace, setup)
    assert run.num_of(Event.CANCEL) == 2
    assert_lockstep(trace, setup, run)


def drawn_alone(prompt: list[int], num_outputs: int, stream_id: int) -> list[int]:
    """One sample without cache, sharing or company, by the same draws."""
    text = list(prompt)
    for _ in range(num_outputs):
        logits = reference_logits(reference(), text)[-1:].float()
        uniform = uniform_draws(5, np.array([stream_id]), np.array([len(text)]))
        text.append(sample(logits, 1.0, torch.from_numpy(uniform)).token_ids.item())
    return text[len(prompt) :]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_samples_that_share_their_prompt_say_what_each_would_say_alone(condition: str) -> None:
    trace = replace(PROMPTS, num_samples=np.array([3, 3, 3]))
    run = run_trace(trace, EngineSetup(CONDITIONS[condition], sampling=Sampling(temperature=1.0, seed=5)))
    assert (run.num_of(Event.PREEMPT) > 0) == ("preempted" in condition)
    for request in run.scheduler.recorder.done[:1]:
        for index, tokens in run.executor.tokens.ranked(request.request_id):
            prompt = tokens.known[: request.num_prompt_tokens].tolist()
            stream_id = request.request_id + (index << 32)
            assert tokens.outputs.tolist() == drawn_alone(prompt, request.num_output_tokens, stream_id)


def test_the_best_of_several_samples() -> None:
    """Scores are log probabilities of what was said, so that the best of n can be told."""
    trace = replace(PROMPTS, num_samples=np.array([4, 1, 2]))
    run = run_trace(trace, EngineSetup(ROOMY, sampling=Sampling(temperature=1.0, seed=5)))
    for request in run.scheduler.recorder.done:
        ranked = run.executor.tokens.ranked(request.request_id)
        assert sorted(index for index, _ in ranked) == list(range(request.num_samples))
        assert [tokens.score for _, tokens in ranked] == sorted((tokens.score for _, tokens in ranked), reverse=True)
        for _, tokens in ranked if request.num_samples > 1 else ():
            logits = torch.log_softmax(reference_logits(reference(), tokens.known.tolist()).double(), dim=-1)
            first = request.num_prompt_tokens - 1
            expected = sum(logits[first + i, token].item() for i, token in enumerate(tokens.outputs.tolist()))
            assert tokens.score == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("mode", [ForcedTokens(), EndOfSequence(frozenset({1}))])
def test_a_search_finds_its_own_tokens(mode: Any) -> None:
    with pytest.raises(InputError, match=r"request 0 (is a beam search|has 3 samples).*use forced_length"):
        run_trace(PROMPTS, EngineSetup(ROOMY, mode, beam_width=3))
