"""Batch policies: who is served in a step, and who stalls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_spans import assert_equal, assert_sound
from world import Bench, Run, Settings, simulate, trace_of

from core.decision_log import Event
from core.interfaces import BatchRules, SchedulerView
from core.request import Outcome
from core.units import PS_PER_S
from policies.batching import Chunked, Orca, PrefillFirst, Static
from traces.schema import Trace

BASE = Settings(100, block_size=4, budget=8, caching=False)


def run_of(trace: Trace, settings: Settings) -> Run:
    """With spans; the same as with single steps."""
    spans, steps = (simulate(trace, replace(settings, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)
    return spans


def chunks_of(run: Run, row: int) -> list[tuple[int, int]]:
    """(step, tokens) of a request's prefill."""
    return [(step, num_new) for step, _, request, num_new in run.decisions(Event.CHUNK) if request == row]


def seconds(run: Run, name: str) -> list[float]:
    return [getattr(request, f"{name}_ps") / PS_PER_S for request in run.requests()]


def test_prompts_first_stall_the_decodes() -> None:
    """Scenario 18's other value: the long prompt takes whole steps, and nobody decodes meanwhile."""
    trace = trace_of([0, 0, 0, 2], [4, 4, 4, 20], [12, 12, 12, 1])
    run = run_of(trace, replace(BASE, batching=PrefillFirst))
    assert chunks_of(run, 2) == [(1, 4)], "the third prompt did not fit into the first step, and goes before decodes"
    assert chunks_of(run, 3) == [(2, 8), (3, 8), (4, 4)]
    assert run.request(3).first_token_ps == 5 * PS_PER_S, "three steps after it came"
    assert run.gaps_s() == [1.0] * (3 * 11 - 3) + [4.0, 5.0, 5.0], "decoders wait for every prompt but their own"


def test_a_prompt_that_never_fits_beside_the_decodes_does_not_starve_them() -> None:
    """It gives itself up again and again; were it let in anew in the same step, nobody would ever decode."""
    settings = replace(BASE, num_blocks=6, budget=4, full_prompt=False, batching=PrefillFirst)
    run = run_of(trace_of([0, 4], [12, 12], [8, 4]), replace(settings, admit_after_preemption=True))
    assert run.num_preemptions > 0
    assert [request.outcome for request in run.requests()] == [Outcome.FINISHED] * 2


class Halving(Chunked):
    """Half the tokens for each that runs already."""

    def compose(self, view: SchedulerView) -> BatchRules:
        return super().compose(view)._replace(budget_tokens=view.max_batch_tokens >> view.num_running)


def test_whoever_composes_anew_is_asked_in_every_step() -> None:
    """Though it derives from a class that says its rules never change."""
    trace = trace_of([0, 0, 0], [8, 12, 2], [3, 3, 3])
    run = run_of(trace, replace(BASE, batching=Halving))
    assert chunks_of(run, 1) == [(1, 3), (2, 1), (3, 4), (4, 4)]
    assert chunks_of(run_of(trace, BASE), 1) == [(1, 7), (2, 5)]


def test_chunked_prefill_delays_the_prompt_instead() -> None:
    trace = trace_of([0, 0, 0, 2], [4, 4, 4, 20], [12, 12, 12, 1])
    run = run_of(trace, replace(BASE, batching=Chunked))
    assert chunks_of(run, 3) == [(2, 5), (3, 5), (4, 5), (5, 5)]
    assert run.gaps_s() == [1.0] * (3 * 11)


def test_prompts_that_do_not_fit_leave_the_step_to_the_decodes() -> None:
    """Memory for the second comes when the first has ended; until then the first decodes, one token a step."""
    run = run_of(trace_of([0, 0], [8, 8], [4, 4]), replace(BASE, num_blocks=3, batching=PrefillFirst))
    assert seconds(run, "first_token") == [1, 5]
    assert seconds(run, "finish") == [4, 8]


def test_swapped_requests_come_back_among_the_decodes() -> None:
    """The first outgrows the pool at step 5; the second, pushed out, comes back when the first has ended."""
    settings = Settings(5, block_size=4, caching=False, mode="swap", host_blocks=8, batching=PrefillFirst)
    run = run_of(trace_of([0, 0], [8, 4], [8, 12]), settings)
    assert run.decisions(Event.PREEMPT, Event.RESUME) == [(5, "PREEMPT", 1, 8), (8, "RESUME", 1, 0)]
    assert run.request(1).num_recomputed_tokens == 0


def test_orca_runs_whole_prompts_beside_decodes() -> None:
    """A prompt of 20 tokens in one step of a budget of 8: only the number of requests bounds a step."""
    run = run_of(trace_of([0, 0, 2], [4, 4, 20], [12, 12, 1]), replace(BASE, batching=Orca, max_num_seqs=3))
    assert chunks_of(run, 2) == [(2, 20)]
    assert run.gaps_s() == [1.0] * (2 * 11)
    full = run_of(trace_of([0, 0, 2], [4, 4, 20], [12, 12, 1]), replace(BASE, batching=Orca, max_num_seqs=2))
    assert chunks_of(full, 2) == [(12, 20)], "no slot before the others have ended"


@pytest.mark.parametrize("batching", [Orca, Static])
def test_what_no_budget_bounds_is_not_rejected_for_being_over_it(batching: Any) -> None:
    """With max_batch_tokens=3: a whole prompt of 20 tokens, and a search whose four beams advance together."""
    bench = Bench(replace(BASE, budget=3, chunked=False, batching=batching))
    prompt, search = bench.add(20, 3), bench.add(4, 3, num_samples=4, is_beam_search=True)
    bench.drain()
    assert [(each.outcome, each.finish_ps) for each in (prompt, search)] == [(Outcome.FINISHED, 3 * PS_PER_S)] * 2


def test_a_static_batch_is_formed_when_nothing_runs_and_runs_to_its_end() -> None:
    """Two slots and four requests: the third waits for the longer of the first two, though a slot is free."""
    run = run_of(trace_of([0, 0, 0, 0], [4] * 4, [2, 9, 3, 3]), replace(BASE, batching=Static, max_num_seqs=2))
    assert seconds(run, "first_token") == [1, 1, 10, 10]
    assert seconds(run, "finish") == [2, 9, 12, 12]


def test_a_static_batch_frees_its_memory_when_all_of_it_is_done() -> None:
    """Blocks in use after each step. Continuous batching frees the first request's two blocks at 2 s."""
    trace = trace_of([0, 0], [8, 4], [2, 6])
    static, orca = (run_of(trace, replace(BASE, batching=batching)) for batching in (Static, Orca))
    names = ("num_referenced_blocks", "num_referenced_blocks_after")
    assert static.step_arrays()[names[0]].tolist() == [3, 5, 5, 5, 5, 6]
    assert orca.step_arrays()[names[0]].tolist() == [3, 5, 2, 2, 2, 3]
    assert static.step_arrays()[names[1]][-1] == orca.step_arrays()[names[1]][-1] == 0


def test_a_static_batch_that_outgrows_the_pool_goes_on() -> None:
    """The second needs blocks that the first, which has ended, still holds. It is its own victim; then nothing runs."""
    run = run_of(trace_of([0, 0], [8, 4], [1, 9]), replace(BASE, batching=Static, num_blocks=4))
    assert [(who, step) for step, _, who, _ in run.decisions(Event.PREEMPT)] == [(1, 5)]
    assert [request.outcome for request in run.requests()] == [Outcome.FINISHED] * 2


@pytest.mark.parametrize(("exempts_alone", "chunks"), [(True, [(0, 12)]), (False, [(0, 5), (1, 5), (2, 2)])])
def test_the_long_prefill_threshold_of_a_lone_request(exempts_alone: bool, chunks: list[tuple[int, int]]) -> None:
    def batching(env: Any) -> Chunked:
        return Chunked(env, exempts_alone=exempts_alone)

    run = run_of(trace_of([0], [12], [2]), replace(BASE, budget=64, long_prefill=5, batching=batching))
    assert chunks_of(run, 0) == chunks
