"""Replay: when requests arrive, what waits for what, and what their prompts share.

Steps take one second: a request with O output tokens that runs at once takes O seconds.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from world import UNIT_STEPS, Run, Settings, scheduler_of, simulate, trace_of

import kvtwin
from core.content import ChainKeys, HashKeys, PrivateKeys
from core.errors import InputError
from core.request import Outcome, Request
from core.source import InputKind
from core.units import PS_PER_S
from sim.simulation import run_simulation
from traces.ragged import Ragged
from traces.reading import read_trace
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.schema import Trace

SHARED = Path(__file__).parents[1].parent / "shared" / "traces"
needs_public_traces = pytest.mark.skipif(not SHARED.is_dir(), reason="no public traces beside this checkout")
AMPLE = Settings(num_blocks=1000)


def arrivals_s(run: Run) -> list[float]:
    return [request.arrival_ps / PS_PER_S for request in run.requests()]


def finishes_s(run: Run) -> list[float]:
    return [request.finish_ps / PS_PER_S for request in run.requests()]


def most_at_once(run: Run) -> int:
    """Requests that were there at the same time; one that leaves as another comes is not counted with it."""
    events = [(request.arrival_ps, 1) for request in run.requests()]
    events += [(request.finish_ps, -1) for request in run.requests()]
    return int(np.cumsum([change for _, change in sorted(events)]).max())


def arrivals_of(trace: Trace, config: ReplayConfig) -> list[Request]:
    """The requests that the source makes by itself, without anybody ever being done."""
    source = TraceSource(trace, config)
    made = []
    while (next_ps := source.next_ps()) is not None:
        made += [given.request for given in source.pop_due(next_ps) if given.kind is InputKind.ARRIVE]
    return made


# ---- when requests arrive ------------------------------------------------------------------------------------------

FIVE = trace_of([0, 0.5, 0.5, 7, 30], [16] * 5, [4, 9, 2, 5, 3])


def test_recorded_arrivals_are_those_of_the_trace() -> None:
    run = simulate(FIVE, AMPLE)
    assert arrivals_s(run) == [0, 0.5, 0.5, 7, 30]
    assert finishes_s(run)[0] == 4
    assert finishes_s(run)[4] == 33, "it found an idle replica, and started at once"


def test_an_arrival_at_the_end_of_a_step_is_seen_by_the_next() -> None:
    """Steps end on whole seconds. The second request comes in the midst of one, the third at its end."""
    run = simulate(trace_of([0, 1.5, 2], [16] * 3, [10, 5, 5]), AMPLE)
    assert [request.first_scheduled_ps / PS_PER_S for request in run.requests()] == [0, 2, 2]


def test_sequential_requests_never_meet() -> None:
    run = simulate(FIVE, AMPLE, arrivals=Arrivals.SEQUENTIAL)
    assert arrivals_s(run) == [0, 4, 13, 15, 20]
    assert finishes_s(run) == [4, 13, 15, 20, 23]
    assert most_at_once(run) == 1


def test_all_at_once_ignores_the_clock_of_the_trace() -> None:
    run = simulate(FIVE, AMPLE, arrivals=Arrivals.ALL_AT_ONCE)
    assert arrivals_s(run) == [0] * 5
    assert finishes_s(run) == [4, 9, 2, 5, 3]


def test_clients_without_a_request_are_not_waited_for() -> None:
    run = simulate(FIVE, AMPLE, arrivals=Arrivals.CLOSED_LOOP, concurrency=10**20)
    assert arrivals_s(run) == [0] * 5


@pytest.mark.parametrize("concurrency", [1, 2, 3, 4, 20])
def test_a_closed_loop_keeps_its_clients_busy(concurrency: int) -> None:
    outputs = [3, 9, 1, 7, 2, 2, 8, 5, 4, 6, 1, 3]
    trace = trace_of(range(12), [16] * 12, outputs)
    run = simulate(trace, AMPLE, arrivals=Arrivals.CLOSED_LOOP, concurrency=concurrency)
    assert most_at_once(run) == min(concurrency, 12)
    clients = [0] * concurrency  # when each is free again: the next request goes to the first that is
    for row, num_output in enumerate(outputs):
        client = clients.index(min(clients))
        assert arrivals_s(run)[row] == clients[client], f"row {row}"
        clients[client] += num_output


def test_a_closed_loop_goes_on_after_rejections_and_cancellations() -> None:
    """The second can never run, the third gives up after 2 s: the client sends its next request all the same."""
    trace = trace_of([0] * 4, [16, 999, 16, 16], [3, 5, 50, 4], cancel_after_ps=[-1, -1, 2 * PS_PER_S, -1])
    run = simulate(trace, Settings(num_blocks=10), arrivals=Arrivals.CLOSED_LOOP, concurrency=1)
    outcomes = [request.outcome for request in run.requests()]
    assert outcomes == [Outcome.FINISHED, Outcome.REJECTED, Outcome.CANCELLED, Outcome.FINISHED]
    assert arrivals_s(run)[:3] == [0, 3, 3]
    assert finishes_s(run)[2] == 5
    assert arrivals_s(run)[3] == 5


def test_a_closed_loop_needs_a_client() -> None:
    with pytest.raises(InputError, match=r"trace\.concurrency=0: a closed loop needs at least 1 client"):
        simulate(FIVE, AMPLE, arrivals=Arrivals.CLOSED_LOOP, concurrency=0)


# ---- sessions ------------------------------------------------------------------------------------------------------

# Two sessions: rows 0, 2, 3 (thinking 5 s, then none) and rows 1, 4 (2.5 s). Times recorded for turns mean nothing.
SESSIONS = trace_of(
    [0, 1, 1, 1, 1],
    [16] * 5,
    [4, 6, 3, 2, 1],
    parent=[-1, -1, 0, 2, 1],
    think_time_ps=[-1, -1, 5 * PS_PER_S, 0, 5 * PS_PER_S // 2],
)


def test_a_turn_comes_when_its_client_has_read_the_answer_before() -> None:
    run = simulate(SESSIONS, AMPLE)
    finish_s = finishes_s(run)
    assert arrivals_s(run) == [0, 1, finish_s[0] + 5, finish_s[2], finish_s[1] + 2.5]
    assert finish_s == [4, 7, 12, 14, 11], "the last one finds a step under way and starts with the next"


def test_no_think_time_means_at_once() -> None:
    """The next turn is in the step that follows the one in which the answer ended."""
    without = trace_of([0, 0], [16, 16], [4, 3], parent=[-1, 0])
    with_zero = trace_of([0, 0], [16, 16], [4, 3], parent=[-1, 0], think_time_ps=[-1, 0])
    for trace in (without, with_zero):
        run = simulate(trace, AMPLE)
        turn = run.request(1)
        assert turn.arrival_ps == turn.first_scheduled_ps == run.request(0).finish_ps == 4 * PS_PER_S


def test_a_turn_whose_think_time_is_not_known_comes_when_the_trace_says() -> None:
    """Under a rule that ignores the trace's times it waits for the answer before, as all turns do."""
    trace = trace_of([0, 2, 3], [16] * 3, [9, 3, 1], parent=[-1, 0, 1], think_time_ps=[-1, -1, PS_PER_S])
    assert arrivals_s(simulate(trace, AMPLE)) == [0, 2, 6]
    assert arrivals_s(simulate(trace, AMPLE, arrivals=Arrivals.ALL_AT_ONCE)) == [0, 9, 13]


@pytest.mark.parametrize("arrivals", [Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP])
def test_sessions_wait_for_their_answers_whoever_sets_the_pace(arrivals: Arrivals) -> None:
    run = simulate(SESSIONS, AMPLE, arrivals=arrivals, concurrency=2)
    assert arrivals_s(run)[:2] == [0, 0]
    for turn, before, think_s in ((2, 0, 5), (3, 2, 0), (4, 1, 2.5)):
        assert arrivals_s(run)[turn] == finishes_s(run)[before] + think_s


def test_a_sequential_replay_of_sessions_keeps_the_order_of_the_trace() -> None:
    run = simulate(SESSIONS, AMPLE, arrivals=Arrivals.SEQUENTIAL)
    assert arrivals_s(run) == [0, 4, 10, 13, 15]
    assert most_at_once(run) == 1


def test_a_session_goes_on_after_a_turn_that_was_rejected_or_cancelled() -> None:
    """The first turn is too long for the pool; the second gives up after 2 s; the third comes."""
    trace = trace_of([1, 1, 1], [999, 16, 16], [5, 50, 4], parent=[-1, 0, 1], cancel_after_ps=[-1, 2 * PS_PER_S, -1])
    run = simulate(trace, Settings(num_blocks=10))
    assert [request.outcome for request in run.requests()] == [Outcome.REJECTED, Outcome.CANCELLED, Outcome.FINISHED]
    assert arrivals_s(run) == [1, 1, 3]


# ---- the columns of a row ------------------------------------------------------------------------------------------


def test_cancellations_count_from_arrival() -> None:
    """The second turn arrives 3 s after the first has ended at 4 s; it gives up 2 s later."""
    trace = trace_of(
        [0, 0],
        [16, 16],
        [4, 50],
        parent=[-1, 0],
        think_time_ps=[-1, 3 * PS_PER_S],
        cancel_after_ps=[90 * PS_PER_S, 2 * PS_PER_S],
    )
    run = simulate(trace, AMPLE)
    assert [request.outcome for request in run.requests()] == [Outcome.FINISHED, Outcome.CANCELLED]
    assert arrivals_s(run)[1] == 7
    assert finishes_s(run)[1] == 9
    assert run.request(1).num_produced_tokens == 1, "it goes as its second step ends, whose token is lost"


def test_a_request_may_give_up_before_anything_happens() -> None:
    run = simulate(trace_of([3], [16], [5], cancel_after_ps=[0]), AMPLE)
    request = run.request(0)
    assert request.outcome is Outcome.CANCELLED
    assert request.finish_ps == 3 * PS_PER_S
    assert run.num_steps == 0


DAY_S = 86_400


def test_a_trace_that_no_run_can_reach_the_end_of_is_refused_before_it_begins() -> None:
    """The clock of a run holds 53 days; traces hold 106, for parts of them may be taken."""
    trace = trace_of([0, 52 * DAY_S, 60 * DAY_S, 61 * DAY_S], [16] * 4, [4] * 4)
    told = r"request 3 arrives on day 61\.0, and a run lasts 53 days at most; expected times"
    with pytest.raises(InputError, match=told):
        TraceSource(trace, ReplayConfig(16))
    for config in (ReplayConfig(16, Arrivals.ALL_AT_ONCE), ReplayConfig(16, Arrivals.SEQUENTIAL)):
        assert TraceSource(trace, config).next_ps() == 0, "who ignores the times need not reach them"
    assert arrivals_s(simulate(trace.take([0, 1]), AMPLE)) == [0, 52 * DAY_S]


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_thinking_for_longer_than_a_run_is_told_and_not_waited_for(arrivals: Arrivals) -> None:
    trace = trace_of([0, 1], [16, 16], [4, 4], parent=[-1, 0], think_time_ps=[-1, 60 * DAY_S * PS_PER_S])
    if arrivals is Arrivals.SEQUENTIAL:
        assert arrivals_s(simulate(trace, AMPLE, arrivals=arrivals)) == [0, 4]
        return
    with pytest.raises(InputError, match=r"request 1 arrives on day 60\.0, and a run lasts 53 days at most"):
        simulate(trace, AMPLE, arrivals=arrivals)


def test_a_patience_longer_than_a_run_never_ends() -> None:
    run = simulate(trace_of([0, 1], [16, 16], [4, 4], cancel_after_ps=[60 * DAY_S * PS_PER_S, -1]), AMPLE)
    assert [request.outcome for request in run.requests()] == [Outcome.FINISHED] * 2


@pytest.mark.parametrize(("max_model_len", "outcome"), [(20, Outcome.FINISHED), (19, Outcome.REJECTED)])
def test_a_row_longer_than_the_model_is_rejected(max_model_len: int, outcome: Outcome) -> None:
    """16 + 4 tokens; the row after it is not affected."""
    trace = trace_of([0, 1], [16, 5], [4, 4])
    scheduler = scheduler_of(Settings(num_blocks=100, max_model_len=max_model_len))
    config = ReplayConfig(16, max_model_len=max_model_len)
    run_simulation(TraceSource(trace, config), scheduler, UNIT_STEPS)
    requests = sorted(scheduler.recorder.done, key=lambda request: request.request_id)
    assert [request.outcome for request in requests] == [outcome, Outcome.FINISHED]
    told = "" if outcome is Outcome.FINISHED else "has 20 tokens, more than max_model_len=19"
    assert requests[0].reject_reason == told


def test_every_column_reaches_its_request() -> None:
    trace = trace_of([0, 2], [16, 17], [4, 5], priority=[3, -1], num_samples=[1, 4], tenant=[7, 8])
    first, second = arrivals_of(trace, ReplayConfig(16))
    assert (first.priority, first.num_samples, first.tenant) == (3, 1, 7)
    assert (second.priority, second.num_samples, second.tenant) == (-1, 4, 8)
    assert (second.arrival_ps, second.num_prompt_tokens, second.num_output_tokens) == (2 * PS_PER_S, 17, 5)
    assert second.cancel_ps == -1


def test_a_category_is_the_kind_of_request_or_else_the_tenant() -> None:
    trace = trace_of([0, 0], [16, 16], [1, 1], tenant=[7, 8])
    assert [request.category for request in arrivals_of(trace, ReplayConfig(16))] == [7, 8]
    trace = replace(trace, category=np.array([1, -1]), category_names=("code", "chat"))
    assert [request.category for request in arrivals_of(trace, ReplayConfig(16))] == [1, -1]


def test_the_outputs_of_a_run_that_stopped_early_replace_those_of_the_trace() -> None:
    source = TraceSource(trace_of([0, 0], [16, 16], [40, 50]), ReplayConfig(16), num_output_tokens={1: 3})
    assert [given.request.num_output_tokens for given in source.pop_due(0)] == [40, 3]


def test_an_arrival_is_made_when_it_is_due_and_not_before() -> None:
    source = TraceSource(FIVE, ReplayConfig(16))
    assert source.next_ps() == 0
    assert [given.request.request_id for given in source.pop_due(0)] == [0]
    assert source.next_ps() == PS_PER_S // 2
    assert [given.request.request_id for given in source.pop_due(8 * PS_PER_S)] == [1, 2, 3]
    assert source.next_ps() == 30 * PS_PER_S


# ---- what prompts share --------------------------------------------------------------------------------------------


def shared_blocks(trace: Trace, block_size: int, **options: bool) -> int:
    """Leading blocks of the first two rows that hold the same KV."""
    first, second = (request.keys for request in arrivals_of(trace, ReplayConfig(block_size, **options))[:2])
    assert len({first.key(index) for index in range(20)}) == 20, "no two blocks of a sequence are alike"
    same = [first.key(index) == second.key(index) for index in range(20)]
    assert same == sorted(same, reverse=True), "chained: nothing is shared behind a difference"
    return sum(same)


@pytest.mark.parametrize(("block_size", "num_shared"), [(16, 12), (32, 6), (64, 3), (128, 1)])
def test_hashes_of_another_block_size_share_the_same_tokens(block_size: int, num_shared: int) -> None:
    """Trace blocks of 64 tokens: three in common, then one of each; pool blocks that divide or multiply them."""
    trace = trace_of([0, 0], [300, 300], [1, 1], [[1, 2, 3, 4, 5], [1, 2, 3, 6, 7]], hash_block_tokens=64)
    assert shared_blocks(trace, block_size) == num_shared


def test_hashes_that_do_not_fit_the_pool_are_refused() -> None:
    trace = trace_of([0], [300], [1], [[1, 2, 3, 4, 5]], hash_block_tokens=64)
    with pytest.raises(InputError, match="neither divides nor is a multiple of the trace's hash block of 64 tokens"):
        arrivals_of(trace, ReplayConfig(48))


def test_only_the_prompt_is_shared_by_hashes() -> None:
    """Equal prompts of 40 tokens with blocks of 16: two full blocks; the third ends in what each was answered."""
    trace = trace_of([0, 0], [40, 40], [100, 100], [[1, 2, 3], [1, 2, 3]], hash_block_tokens=16)
    assert shared_blocks(trace, 16) == 2


def test_salted_prompts_share_within_their_salt_only() -> None:
    ids = [[1, 2, 3]] * 3
    segments = [[(0, 48)]] * 3
    for content in ({"hash_ids": ids, "hash_block_tokens": 16}, {"segments": segments}):
        trace = trace_of([0, 0, 0], [48] * 3, [1] * 3, hash_salt=[1, 1, 2], **content)
        assert shared_blocks(trace, 16) == 3
        assert shared_blocks(trace.take([1, 2]), 16) == 0


def test_segments_share_where_their_tokens_are_the_same() -> None:
    """Both begin with tokens 100 to 149; the one has them in two pieces. 50 tokens are three blocks of 16."""
    segments = [[(100, 50), (500, 14)], [(100, 20), (120, 30), (700, 14)]]
    trace = trace_of([0, 0], [64, 64], [1, 1], segments=segments)
    assert shared_blocks(trace, 16) == 3
    assert shared_blocks(trace, 10) == 5


def test_a_turn_finds_the_answer_before_it_where_answers_are_the_recorded_ones() -> None:
    """Prompt 32 + answer 32; the next turn's prompt holds both: 64 tokens, 4 blocks, or 2 if the model made its own."""
    prompts = trace_of([0, 0], [32, 80], [32, 5], segments=[[(0, 32)], [(0, 32), (900, 32), (50, 16)]])
    trace = replace(prompts, output_segments=Ragged.of_segments([[(900, 32)], [(3, 5)]]))
    trace.validate()
    assert shared_blocks(trace, 16) == 4
    assert shared_blocks(trace, 16, outputs_as_recorded=False) == 2


def test_a_trace_without_prefixes_shares_nothing() -> None:
    assert shared_blocks(trace_of([0, 0], [64, 64], [1, 1]), 16) == 0


def test_content_decides_the_kind_of_keys() -> None:
    hashes = trace_of([0], [16], [1], [[1]], hash_block_tokens=16)
    segments = trace_of([0], [16], [1], segments=[[(0, 16)]])
    nothing = trace_of([0], [16], [1])
    kinds = [type(arrivals_of(trace, ReplayConfig(16))[0].keys) for trace in (hashes, segments, nothing)]
    assert kinds == [HashKeys, ChainKeys, PrivateKeys]


# ---- the public traces ---------------------------------------------------------------------------------------------


@needs_public_traces
@pytest.mark.parametrize(
    ("name", "hit_tokens", "prompt_tokens"),
    [("conversation", 54_063_104, 144_793_823), ("synthetic", 39_802_880, 61_194_628)],
)
def test_prefix_hits_of_an_infinite_cache_on_mooncake(name: str, hit_tokens: int, prompt_tokens: int) -> None:
    """One request at a time, nothing ever evicted: the ceiling of any cache, as counted by other code too.

    Answers, which no other request shares, are cut to one token to save time.
    """
    trace = read_trace(SHARED / "mooncake" / f"{name}_trace.jsonl")
    run = kvtwin.simulate(
        replace(trace, num_output_tokens=np.ones_like(trace.num_output_tokens)),
        cost="linear",
        pool={"num_blocks": "unbounded", "block_size_tokens": 512},
        overrides=["trace.arrivals=sequential", "scheduler.max_batch_tokens=1048576", "decisions=off"],
    )
    metrics = run.summary["metrics"]
    assert metrics["outcomes"]["finished"] == run.summary["trace"]["num_requests"]
    assert metrics["prompt_tokens"] == prompt_tokens
    assert metrics["prefix_hit_tokens"] == hit_tokens
    assert run.requests["num_prefill_tokens"].sum() == prompt_tokens - hit_tokens
    assert metrics["num_evictions"] == 0


@needs_public_traces
def test_azure_says_nothing_of_prefixes() -> None:
    """Its hit ratio is undefined, not 0."""
    path = SHARED / "azure" / "AzureLLMInferenceTrace_code.csv"
    trace = read_trace(path)
    assert not trace.has_prefix_information
    assert type(arrivals_of(trace.take(range(3)), ReplayConfig(16))[2].keys) is PrivateKeys
    metrics = kvtwin.simulate(path, overrides=["trace.limit=20", "pool.num_blocks=2000"]).summary["metrics"]
    assert metrics["prefix_hit_ratio"] is None
    assert metrics["outcomes"]["finished"] == 20
