"""Lockstep: what entered the engine's control plane, replayed in the simulator, gives the same decisions and times."""

from __future__ import annotations

import gzip
import multiprocessing
import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from engine_world import (
    EngineResult,
    EngineSetup,
    assert_lockstep,
    jittery_clock,
    repeat_in_simulator,
    run_trace,
)
from hypothesis import HealthCheck, given, settings
from workloads import STEP_PS, Workload, workloads
from world import Settings, trace_of

from core.decision_log import Event
from core.errors import InputError
from core.inputs_log import InputsLog, read_inputs
from core.interfaces import Admission, AdmissionPolicy
from core.request import Outcome
from engine.clock import EngineClock
from engine.output_mode import EndOfSequence, ForcedLength, ForcedTokens
from traces.reading import read_trace
from traces.replay import Arrivals
from traces.samples import sample_path
from traces.schema import Trace
from traces.transforms import length_scale, limit

SHARED = Path(__file__).parents[1].parent / "shared" / "traces"


whole_trace = cache(read_trace)


@dataclass(frozen=True)
class Case:
    """A trace, scaled for the tiny model, and a pool that is too small for it."""

    path: Path
    num_requests: int
    scale: str
    block_size: int
    num_blocks: int

    def trace(self) -> Trace:
        return length_scale(limit(whole_trace(self.path), self.num_requests), self.scale)

    def setup(self, trace: Trace, mode: str) -> EngineSetup:
        """Steps take about as long as the requests are apart, so that several run at a time."""
        step_ns = int(trace.span_s / trace.num_requests * 1e9)
        return EngineSetup(
            Settings(self.num_blocks, self.block_size, budget=256, mode=mode, host_blocks=400, full_prompt=False),
            ForcedTokens() if trace.output_segments is not None else ForcedLength(),
            clock=lambda: jittery_clock(1, step_ns // 2, step_ns),
        )


SAMPLES = {
    "chat": Case(sample_path("chat"), 25, "1/16", 4, 70),
    "agent_sessions": Case(sample_path("agent_sessions"), 25, "1/16", 4, 60),
    "long_documents": Case(sample_path("long_documents"), 25, "1/32", 4, 75),
}
PUBLIC = {
    "azure_conv": Case(SHARED / "azure" / "AzureLLMInferenceTrace_conv.csv", 60, "1/8", 16, 36),
    "azure_code": Case(SHARED / "azure" / "AzureLLMInferenceTrace_code.csv", 60, "1/8", 16, 62),
    "mooncake_conversation": Case(SHARED / "mooncake" / "conversation_trace.jsonl", 60, "1/32", 16, 176),
    "mooncake_synthetic": Case(SHARED / "mooncake" / "synthetic_trace.jsonl", 60, "1/32", 16, 114),
}


def assert_clean_lockstep_under_pressure(case: Case, mode: str) -> None:
    trace = case.trace()
    setup = case.setup(trace, mode)
    engine = run_trace(trace, setup)
    assert engine.num_of(Event.EVICT) > 0
    assert engine.num_of(Event.PREEMPT) > 0
    assert (engine.shadow.num_checked["swap_in"] > 0) == (mode == "swap")
    assert {request.outcome for request in engine.scheduler.recorder.done} == {Outcome.FINISHED}
    assert len(engine.scheduler.recorder.done) == trace.num_requests
    assert_lockstep(trace, setup, engine)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples(name, mode):
    assert_clean_lockstep_under_pressure(SAMPLES[name], mode)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("name", PUBLIC)
def test_public_traces(name, mode):
    if not PUBLIC[name].path.exists():
        pytest.skip("the shared traces are not here")
    assert_clean_lockstep_under_pressure(PUBLIC[name], mode)


def test_think_time_follows_the_engines_own_answers():
    """The next turn of a session arrives when its user has read the answer, on the clock that gave it."""
    trace = SAMPLES["agent_sessions"].trace()
    engine = run_trace(trace, SAMPLES["agent_sessions"].setup(trace, "recompute"))
    done = {request.request_id: request for request in engine.scheduler.recorder.done}
    turns = [(row, parent) for row, parent in enumerate(trace.parent.tolist()) if parent >= 0]
    assert turns
    for row, parent in turns:
        assert done[row].arrival_ps == done[parent].finish_ps + max(0, int(trace.think_time_ps[row]))
    assert engine.inputs.arrivals == sorted(engine.inputs.arrivals)


# ---- hand-made inputs -----------------------------------------------------------------------------------------------


def text_trace(num_requests: int = 14, **columns) -> Trace:
    segments = [[(500, 12), (3000 + 97 * row, 1 + row)] for row in range(num_requests)]
    return trace_of(
        [row * 0.002 for row in range(num_requests)],
        [13 + row for row in range(num_requests)],
        [10 + (row * 5) % 13 for row in range(num_requests)],
        segments=segments,
        **columns,
    )


TIGHT = Settings(num_blocks=24, block_size=4, full_prompt=False)


@pytest.mark.parametrize("mode", ["recompute", "swap"])
def test_cancellations_while_waiting_running_and_swapped(mode):
    cancel_after_ps = [-1 if row % 2 else (3 + 2 * row) * 10**9 for row in range(14)]
    setup = EngineSetup(replace(TIGHT, mode=mode, host_blocks=50))
    trace = text_trace(cancel_after_ps=cancel_after_ps)
    engine = run_trace(trace, setup)
    assert engine.num_of(Event.CANCEL) >= 5
    assert engine.num_of(Event.PREEMPT) > 0
    assert_lockstep(trace, setup, engine)


def test_requests_that_end_by_themselves():
    """The simulator has no model: the log tells it where a sequence met its end token."""
    trace = text_trace()
    spoken = run_trace(trace, EngineSetup(TIGHT)).outputs()
    setup = EngineSetup(TIGHT, EndOfSequence(frozenset({spoken[4][0][3], spoken[9][0][0]})))
    engine = run_trace(trace, setup)
    assert len(engine.inputs.num_output_tokens) >= 2
    assert 1 in engine.inputs.num_output_tokens.values()  # ended with the token of its prefill
    assert_lockstep(trace, setup, engine)


@pytest.mark.parametrize("arrivals", [Arrivals.SEQUENTIAL, Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP])
def test_other_arrivals(arrivals):
    setup = EngineSetup(TIGHT, arrivals=arrivals, concurrency=5)
    engine = run_trace(text_trace(), setup)
    assert_lockstep(text_trace(), setup, engine)


class InPairs(AdmissionPolicy):
    """Nobody runs alone."""

    def admit(self, request, num_new_blocks, view):
        return Admission.ADMIT if view.num_running + view.num_waiting > 1 else Admission.WAIT


class ShortPrompts(AdmissionPolicy):
    """Whoever asks too much is sent away, but only when its turn comes."""

    def admit(self, request, num_new_blocks, view):
        return Admission.REJECT if request.num_prompt_tokens > 20 else Admission.ADMIT


def test_inputs_that_leave_the_engine_idle():
    """The head of the queue waits for company; first somebody unservable comes, then a companion."""
    trace = trace_of([0, 0.5, 1.0], [8, 30, 8], [5, 30, 5])
    setup = EngineSetup(Settings(num_blocks=5, block_size=4), admission=InPairs)
    engine = run_trace(trace, setup)
    assert [request.outcome for request in engine.scheduler.recorder.done] == [Outcome.REJECTED, Outcome.FINISHED]
    assert_lockstep(trace, setup, engine)


@pytest.mark.parametrize("think_time_ps", [0, 10**10])
def test_turns_go_on_after_an_answer_that_was_refused_at_admission(think_time_ps):
    rows = range(14)
    trace = text_trace(
        parent=[row - 3 if row >= 3 else -1 for row in rows],
        think_time_ps=[think_time_ps if row >= 3 else -1 for row in rows],
    )
    setup = EngineSetup(TIGHT, admission=ShortPrompts)
    engine = run_trace(trace, setup)
    outcomes = {request.request_id: request.outcome for request in engine.scheduler.recorder.done}
    assert outcomes == {row: Outcome.REJECTED if row > 7 else Outcome.FINISHED for row in rows}
    assert_lockstep(trace, setup, engine)


class StepTime:
    """Nanoseconds as fractions, so that steps last about as long as those of the workloads' cheapest cost model."""

    def __init__(self) -> None:
        self._draw = random.Random(1)
        self._now_ps = 0

    def __call__(self) -> int:
        self._now_ps += self._draw.choice((STEP_PS, STEP_PS, STEP_PS - 3, STEP_PS + 2))
        return self._now_ps


class PicosecondClock(EngineClock):
    """Workloads think in picoseconds."""

    def read_ps(self) -> int:
        return self._read_ns()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads())
def test_random_workloads(workload: Workload) -> None:
    """Samples, cancellations, priorities, sessions, swaps and ties, in pools just big enough; shadow tags on."""
    setup = EngineSetup(
        replace(workload.settings, keep_cancelled=False),
        arrivals=workload.arrivals,
        concurrency=workload.concurrency,
        clock=lambda: PicosecondClock(StepTime()),
    )
    assert_lockstep(workload.trace, setup, run_trace(workload.trace, setup))


# ---- the record -----------------------------------------------------------------------------------------------------


def replay_file(path: Path) -> str:
    """Runs in another process, which has nothing but the file and the trace."""
    setup = EngineSetup(TIGHT)
    return repeat_in_simulator(text_trace(), setup, read_inputs(path)).log.digest()


def recorded() -> EngineResult:
    return run_trace(text_trace(), EngineSetup(TIGHT))


def test_the_file_is_enough_for_a_fresh_process(tmp_path):
    engine = recorded()
    path = tmp_path / "inputs.jsonl.gz"
    path.write_bytes(engine.inputs_log.to_bytes())
    assert read_inputs(path) == engine.inputs
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(replay_file, (path,)) == engine.scheduler.log.digest()


def test_the_same_inputs_give_the_same_bytes():
    assert recorded().inputs_log.to_bytes() == recorded().inputs_log.to_bytes()


def test_a_slower_step_is_another_run():
    """The control: with other durations the decisions part, so equality means something."""
    engine = recorded()
    slower = replace_durations(engine, [2 * duration for duration in engine.inputs.durations_ps])
    assert slower != engine.scheduler.log.digest()


def replace_durations(engine: EngineResult, durations_ps: list[int]) -> str:
    inputs = replace(engine.inputs, durations_ps=durations_ps + [10**9] * 1000)
    return repeat_in_simulator(text_trace(), EngineSetup(TIGHT), inputs).log.digest()


def test_steps_without_work_take_no_time():
    log = InputsLog()
    log.ran(step=0, now_ps=5, duration_ps=7)
    log.ran(step=2, now_ps=12, duration_ps=9)
    assert log.recorded().durations_ps == [7, 0, 9]
    assert np.sum(log.recorded().durations_ps) == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text", "not readable as gzip"),
        (
            gzip.compress(b'{"input":"arrive","time_ps":0,"request":0}\n{"input":"nap"}\n'),
            "line 2: .*unknown input 'nap'",
        ),
        (gzip.compress(b'{"input":"step","time_ps":0}\n'), "line 1: .*step"),
        (gzip.compress(b'{"input":"arrive"'), "line 1"),
        (gzip.compress(b"[]"), "line 1"),
    ],
    ids=["not packed", "unknown input", "no duration", "cut off", "a list"],
)
def test_a_damaged_record_says_where(tmp_path, content, message):
    path = tmp_path / "inputs.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_inputs(path)
    with pytest.raises(InputError, match="no recorded inputs"):
        read_inputs(tmp_path / "absent")
