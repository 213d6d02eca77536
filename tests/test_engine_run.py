"""The engine under its scheduler: whatever memory and batching do, every request gets the tokens it would get alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from engine_world import TINY, EngineResult, EngineSetup, jittery_clock, run_trace, tiny_decoder
from world import Settings, scheduler_of, trace_of

from core.decision_log import Event
from core.errors import InputError
from core.inputs_log import InputsLog
from core.request import Outcome
from engine.clock import DriftProbe, EngineClock, engine_clock
from engine.decoder_shape import DecoderShape
from engine.draws import Sampling
from engine.executor import TorchExecutor
from engine.model import Decoder
from engine.output_mode import EndOfSequence, ForcedTokens
from engine.run import run_engine
from engine.smollm2 import fetch_smollm2_135m, find_smollm2_135m
from engine.tokenizer import BPECodec
from engine.weights import TOKENIZER_FILE, load_weights
from kvtwin.prompt_tokens import TraceTokens, corpus_text
from traces.ragged import Ragged
from traces.schema import Trace

ALONE = Settings(num_blocks=200, block_size=4, max_num_seqs=1, caching=False)
SMALL_POOL = Settings(num_blocks=26, block_size=4, full_prompt=False, budget=64)
CONDITIONS = {
    "batched": replace(ALONE, max_num_seqs=64),
    "cached": replace(ALONE, max_num_seqs=64, caching=True),
    "chunked": replace(ALONE, max_num_seqs=64, caching=True, budget=7),
    "long prefills held back": replace(ALONE, max_num_seqs=64, caching=True, long_prefill=5),
    "preempted, recomputed": replace(SMALL_POOL, caching=False),
    "preempted, recomputed, cached": SMALL_POOL,
    "preempted, swapped": replace(SMALL_POOL, mode="swap", host_blocks=60),
    "preempted, swapped, uncached": replace(SMALL_POOL, mode="swap", host_blocks=60, caching=False),
}


def shared_prefix_trace(num_requests: int = 12) -> Trace:
    """Prompts of 13 to 46 tokens: a common beginning of 12, then words of their own."""
    segments = [[(500, 12), (3000 + 97 * row, 1 + row * 3)] for row in range(num_requests)]
    return trace_of(
        [row * 0.002 for row in range(num_requests)],
        [12 + 1 + row * 3 for row in range(num_requests)],
        [8 + (row * 5) % 17 for row in range(num_requests)],
        segments=segments,
    )


@cache
def alone() -> EngineResult:
    return run_trace(shared_prefix_trace(), EngineSetup(ALONE))


def assert_same_tokens(ours: EngineResult, reference: EngineResult) -> None:
    """Equal outputs, but for what follows a near-tie: there the order of additions may choose."""
    assert reference.executor.num_near_ties <= 0.01 * reference.executor.num_sampled
    tied = {(tie.request_id, tie.sample) for tie in reference.executor.near_ties}
    got, expected = ours.outputs(), reference.outputs()
    assert got.keys() == expected.keys()
    for request_id, samples in expected.items():
        for index, tokens in enumerate(samples):
            if (request_id, index) not in tied:
                assert got[request_id][index] == tokens, f"request {request_id}, sample {index}"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_greedy_tokens_are_those_of_a_request_that_runs_alone(condition):
    run = run_trace(shared_prefix_trace(), EngineSetup(CONDITIONS[condition]))
    assert_same_tokens(run, alone())
    assert (run.num_of(Event.PREEMPT) > 0) == ("preempted" in condition)
    assert (run.num_of(Event.SWAP_IN) > 0) == ("swapped" in condition)
    if "cached" in condition.split():
        assert run.shadow.num_checked["hit"] > 0


def test_every_request_produces_what_the_trace_says():
    trace = shared_prefix_trace()
    assert [len(samples[0]) for _, samples in sorted(alone().outputs().items())] == trace.num_output_tokens.tolist()
    assert all(request.outcome is Outcome.FINISHED for request in alone().scheduler.recorder.done)


# ---- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_prompt", "after_prefill"), [(100, 7), (96, 6)])
def test_four_samples_share_their_prompt(num_prompt, after_prefill):
    """n=4, 20 outputs, blocks of 16: the full prompt blocks are held once; the peak is 6 + 4 * 2 blocks."""
    setup = EngineSetup(Settings(num_blocks=64, block_size=16))
    four = run_trace(trace_of([0], [num_prompt], [20], num_samples=[4]), setup)
    referenced = four.referenced_blocks()
    assert referenced[0] == after_prefill
    assert referenced[1] == 10  # 6 shared, and a tail for each: three copies and the original, or four new blocks
    assert max(referenced) == 14
    assert four.num_of(Event.COPY) == (3 if num_prompt % 16 else 0)
    one = run_trace(trace_of([0], [num_prompt], [20]), setup)
    assert four.outputs()[0] == one.outputs()[0] * 4


def test_samples_part_at_a_temperature_and_do_not_depend_on_their_company():
    trace = trace_of([0, 0.003, 0.004], [21, 30, 9], [12, 12, 12], num_samples=[4, 1, 2])
    warm = Sampling(temperature=1.0, seed=5)
    roomy = run_trace(trace, EngineSetup(Settings(num_blocks=200, block_size=4), sampling=warm))
    tight = run_trace(
        trace, EngineSetup(Settings(num_blocks=20, block_size=4, budget=30, full_prompt=False), sampling=warm)
    )
    assert tight.num_of(Event.PREEMPT) > 0
    assert roomy.outputs() == tight.outputs()
    assert len(set(map(tuple, roomy.outputs()[0]))) == 4
    other = EngineSetup(Settings(num_blocks=200, block_size=4), sampling=replace(warm, seed=6))
    assert run_trace(trace, other).outputs() != roomy.outputs()


# ---- outputs --------------------------------------------------------------------------------------------------------


def with_recorded_outputs(trace: Trace) -> Trace:
    rows = [[(9000 + 50 * row, num)] for row, num in enumerate(trace.num_output_tokens.tolist())]
    return replace(trace, output_segments=Ragged.of_segments(rows))


def test_forced_tokens_are_the_recorded_ones():
    trace = with_recorded_outputs(shared_prefix_trace())
    run = run_trace(trace, EngineSetup(SMALL_POOL, ForcedTokens()))
    text = corpus_text().encode()
    for row, (start, num) in enumerate(trace.output_segments.values.tolist()):
        assert bytes(run.outputs()[row][0]) == text[start : start + num]


def test_forced_tokens_need_a_recorded_output():
    with pytest.raises(InputError, match="request 0 wants 8 recorded output tokens, the trace has none"):
        run_trace(shared_prefix_trace(), EngineSetup(SMALL_POOL, ForcedTokens()))


def test_a_sequence_ends_at_its_end_token():
    produced = {row: samples[0] for row, samples in alone().outputs().items()}
    eos = produced[3][4]
    run = run_trace(shared_prefix_trace(), EngineSetup(CONDITIONS["cached"], EndOfSequence(frozenset({eos}))))
    stopped = {}
    for row, tokens in produced.items():
        num = tokens.index(eos) + 1 if eos in tokens else len(tokens)
        assert run.outputs()[row] == [tokens[:num]]
        if num < len(tokens):
            stopped[row] = num
    assert 3 in stopped
    assert run.inputs.num_output_tokens == stopped


def test_an_end_token_cannot_end_one_of_several_samples():
    with pytest.raises(InputError, match="eos: request 0 has 2 samples"):
        run_trace(trace_of([0], [9], [5], num_samples=[2]), EngineSetup(SMALL_POOL, EndOfSequence(frozenset({1}))))


# ---- what the engine refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(num_blocks=None), "set pool.num_blocks"),
        (Settings(num_blocks=8, spans=True), "single_steps"),
        (Settings(num_blocks=8, keep_cancelled=True), "never computed"),
    ],
)
def test_schedulers_that_the_engine_cannot_follow(settings, message):
    scheduler = scheduler_of(replace(settings, spans="single_steps" in message))
    source = EngineSetup(settings).source(shared_prefix_trace())
    with pytest.raises(InputError, match=message):
        run_engine(source, scheduler, None, jittery_clock(), InputsLog())


def test_a_request_longer_than_the_model():
    shape: DecoderShape = replace(TINY, max_positions=16)
    setup = EngineSetup(ALONE, decoder=lambda: Decoder(shape, tiny_decoder().weights))
    trace = trace_of([0, 0], [10, 10], [20, 6])
    with pytest.raises(InputError, match="request 0: 30 tokens exceed the model's 16 positions"):
        run_trace(trace, setup)
    limited = run_trace(trace, replace(setup, max_model_len=16))
    outcomes = {request.request_id: request.outcome for request in limited.scheduler.recorder.done}
    assert outcomes == {0: Outcome.REJECTED, 1: Outcome.FINISHED}


# ---- the user stops the run -----------------------------------------------------------------------------------------


class InterruptedExecutor(TorchExecutor):
    """Presses Ctrl-C in the middle of a step, `num_presses` times."""

    num_presses = 1

    def run(self, step):
        if step.plan.step == 5:
            for _ in range(self.num_presses):
                signal.raise_signal(signal.SIGINT)
        return super().run(step)


class ImpatientExecutor(InterruptedExecutor):
    num_presses = 2


def test_ctrl_c_ends_the_run_after_the_step():
    handler = signal.getsignal(signal.SIGINT)
    run = run_trace(shared_prefix_trace(), EngineSetup(ALONE, executor=InterruptedExecutor))
    assert run.ended.interrupted
    assert len(run.scheduler.recorder.step_duration_ps) == len(run.inputs.durations_ps) == 6
    assert run.ended.end_ps == run.scheduler.now_ps
    assert len(run.scheduler.running) == 1
    assert signal.getsignal(signal.SIGINT) is handler
    assert not alone().ended.interrupted


def test_a_second_ctrl_c_does_not_wait():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_trace(shared_prefix_trace(), EngineSetup(ALONE, executor=ImpatientExecutor))
    assert signal.getsignal(signal.SIGINT) is handler


# ---- the clock ------------------------------------------------------------------------------------------------------


class ManualTime:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def passes(self, seconds: float) -> Callable[[], None]:
        def spend() -> None:
            self.now_ns += round(seconds * 1e9)

        return spend


def test_the_probe_runs_every_quarter_second_and_costs_no_time():
    time = ManualTime()
    clock = EngineClock(time, probe=time.passes(0.005))
    for number in range(10):
        clock.probe_if_due(now_ps=number)
        time.passes(0.1)()
    assert clock.read_ps() == 10**12
    assert clock.probe_readings == [(0, 5 * 10**9), (3, 5 * 10**9), (6, 5 * 10**9), (9, 5 * 10**9)]


def test_both_clocks_advance_with_work_and_keep_to_integers():
    for mode in ("wall", "cpu"):
        clock = engine_clock(mode, DriftProbe())
        before = clock.read_ps()
        clock.probe_if_due(now_ps=0)
        sum(range(10**5))
        assert isinstance(before, int)
        assert clock.read_ps() > before
        assert clock.probe_readings[0].duration_ps > 0
    with pytest.raises(InputError, match=r"engine.clock='sundial' is unknown; expected wall or cpu"):
        engine_clock("sundial")


def test_run_time_is_contiguous_but_for_idle_jumps():
    """A step lasts from the end of the step before; only where nothing was left to do may time be skipped."""
    trace = trace_of([0, 0.001, 5.0], [9, 9, 9], [6, 6, 6])
    recorder = run_trace(trace, EngineSetup(ALONE)).scheduler.recorder
    starts, durations = np.array(recorder.plan_column("start_ps")), np.array(recorder.step_duration_ps)
    gaps = starts[1:] - (starts + durations)[:-1]
    assert np.count_nonzero(gaps) == 1
    assert starts[np.argmax(gaps) + 1] == 5 * 10**12


# ---- a real model ---------------------------------------------------------------------------------------------------


@cache
def smollm2() -> tuple[Decoder, np.ndarray]:
    folder = fetch_smollm2_135m() if os.environ.get("KVTWIN_FETCH") else find_smollm2_135m()
    if folder is None:
        pytest.skip("SmolLM2-135M is not in the cache and KVTWIN_FETCH is not set")
    shape, weights = load_weights(folder, torch.float32)
    return Decoder(shape, weights), BPECodec.load(folder / TOKENIZER_FILE).encode_corpus(corpus_text())


@pytest.mark.weights
def test_smollm2_says_the_same_under_pressure():
    segments = [[(100, 16), (4000 + 300 * row, 8 + 5 * row)] for row in range(3)]
    trace = trace_of([0] * 3, [24 + 5 * row for row in range(3)], [5] * 3, segments=segments)
    decoder, corpus_tokens = smollm2()
    tokens: Any = TraceTokens(trace, corpus_tokens, decoder.shape.vocab_size)
    setup = partial(EngineSetup, decoder=lambda: decoder, tokens=tokens)
    reference = run_trace(trace, setup(ALONE))
    for mode in ("recompute", "swap"):
        settings = Settings(num_blocks=16, block_size=4, mode=mode, host_blocks=20, budget=48, full_prompt=False)
        pressed = run_trace(trace, setup(settings))
        assert pressed.num_of(Event.PREEMPT) > 0
        assert_same_tokens(pressed, reference)
