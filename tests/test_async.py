"""Async scheduling in the simulator: what it costs in steps, and that spans stay exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_spans import assert_equal, assert_sound
from world import Run, Settings, simulate, trace_of

from core.decision_log import Event
from core.errors import InputError
from core.request import Outcome
from core.scheduler import SchedulerConfig
from core.units import PS_PER_S
from traces.schema import Trace

SYNC = Settings(100, block_size=4, caching=False)
ASYNC = replace(SYNC, asynchronous=True)


def run_of(trace: Trace, settings: Settings) -> Run:
    """With spans; the same as with single steps."""
    spans, steps = (simulate(trace, replace(settings, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert_sound(spans)
    return spans


def first_tokens_s(run: Run) -> list[float]:
    return [request.first_token_ps / PS_PER_S for request in run.requests()]


def ends_s(run: Run) -> list[float]:
    return [request.finish_ps / PS_PER_S for request in run.requests()]


def test_alone_nothing_is_lost() -> None:
    """The pipeline never runs dry: the second step is decided when the first begins."""
    for settings in (SYNC, ASYNC):
        run = run_of(trace_of([0], [8], [5]), settings)
        assert (first_tokens_s(run), ends_s(run), run.num_steps) == ([1], [5], 5)


@pytest.mark.parametrize(("settings", "first_token_s"), [(SYNC, 3), (ASYNC, 4)])
def test_who_arrives_in_a_step_waits_for_one_more(settings: Settings, first_token_s: float) -> None:
    """At 1.5 s the step that ends at 2 s runs, and the one after it is decided already."""
    run = run_of(trace_of([0, 1.5], [8, 8], [9, 2]), settings)
    assert first_tokens_s(run) == [1, first_token_s]
    assert ends_s(run) == [9, first_token_s + 1]


@pytest.mark.parametrize(("settings", "first_token_s"), [(SYNC, 4), (ASYNC, 5)])
@pytest.mark.parametrize("short", [{"max_num_seqs": 2}, {"num_blocks": 7}])
def test_who_waits_for_a_slot_or_for_memory_waits_a_step_longer(
    settings: Settings, first_token_s: float, short: dict[str, int]
) -> None:
    """The first ends at 3 s; by then the next step is decided without it, and without the third."""
    run = run_of(trace_of([0, 0, 0], [8, 8, 16], [3, 9, 1]), replace(settings, **short))  # type: ignore[arg-type]
    assert first_tokens_s(run) == [1, 1, first_token_s]


def test_where_nobody_else_runs_it_costs_nothing() -> None:
    """The step that is decided without the first is empty, and takes no time."""
    trace = trace_of([0, 0], [8, 8], [3, 1])
    for settings in (SYNC, ASYNC):
        assert first_tokens_s(run_of(trace, replace(settings, max_num_seqs=1))) == [1, 4]


def test_a_lone_request_is_a_handful_of_plans_however_long() -> None:
    run = run_of(trace_of([0], [100], [900]), replace(ASYNC, num_blocks=250))
    assert (run.num_steps, run.num_plans) == (900, 2)


def test_a_victim_may_end_while_it_waits() -> None:
    """The first outgrows 4 blocks when the second's last token is on its way: it gives its blocks up, and ends."""
    run = run_of(trace_of([0, 0], [6, 5], [9, 3]), replace(ASYNC, num_blocks=4))
    assert run.decisions(Event.PREEMPT, Event.RESUME) == [(3, "PREEMPT", 1, 7)]
    assert ends_s(run) == [9, 3]


def test_samples_are_refused_by_name() -> None:
    run = run_of(trace_of([0, 0], [8, 8], [4, 4], num_samples=[3, 1]), ASYNC)
    assert [request.outcome for request in run.requests()] == [Outcome.REJECTED, Outcome.FINISHED]
    assert run.request(0).reject_reason == "wants 3 samples: async scheduling serves one a request"


def test_publication_at_step_end_does_not_go_with_it() -> None:
    with pytest.raises(InputError, match="publication=step_end"):
        SchedulerConfig(async_scheduling=True, publication="step_end")
