"""A tiny engine for tests: a seeded model of two layers, and the simulator that repeats its runs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from world import Settings, check_integrity, scheduler_of

from core.decision_log import Event, first_difference
from core.inputs_log import InputsLog, RecordedInputs
from core.interfaces import AdmissionPolicy
from core.lcm_tables import LcmTables
from core.scheduler import Scheduler
from engine.clock import EngineClock
from engine.decoder_shape import DecoderShape
from engine.draws import Sampling
from engine.executor import TorchExecutor
from engine.kv_cache import allocate_kv
from engine.large_pages import SmallPages, allocate_large_pages
from engine.model import Decoder
from engine.output_mode import ForcedLength, OutputMode
from engine.run import EngineRun, run_engine
from engine.shadow import Shadow
from engine.tokens import PromptTokens, TokenStore
from engine.weights import random_weights
from kvtwin.prompt_tokens import TraceTokens, corpus_text
from sim.beam_model import RecordedBeams
from sim.recorded_cost import RecordedCost
from sim.simulation import run_simulation
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.schema import Trace

TINY = DecoderShape(
    num_layers=2,
    hidden=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    intermediate=48,
    vocab_size=512,
    max_positions=4096,
)


@cache
def tiny_decoder() -> Decoder:
    return Decoder(TINY, random_weights(TINY, seed=11))


@cache
def corpus_bytes() -> np.ndarray:
    """The bundled text, a token a byte."""
    return np.frombuffer(corpus_text().encode(), dtype=np.uint8).astype(np.int64)


def jittery_clock(seed: int = 0, least_ns: int = 500_000, most_ns: int = 1_500_000) -> EngineClock:
    """A clock that advances by a random amount at each reading: a run on it is the same every time."""
    draw = random.Random(seed)
    now_ns = 0

    def read_ns() -> int:
        nonlocal now_ns
        now_ns += draw.randint(least_ns, most_ns)
        return now_ns

    return EngineClock(read_ns)


@dataclass
class EngineSetup:
    """What a run is made of. `executor` may be a faulty kind; `tokens` replaces those of the trace."""

    settings: Settings
    output: OutputMode = field(default_factory=ForcedLength)
    sampling: Sampling = field(default_factory=Sampling)
    arrivals: Arrivals = Arrivals.RECORDED
    concurrency: int = 1
    beam_width: int | None = None
    max_model_len: int | None = None
    clock: Callable[[], EngineClock] = jittery_clock
    decoder: Callable[[], Decoder] = tiny_decoder
    executor: Callable[..., TorchExecutor] = TorchExecutor
    tokens: PromptTokens | None = None
    admission: type[AdmissionPolicy] | None = None

    def scheduler(self, spans: bool) -> Scheduler:
        scheduler = scheduler_of(replace(self.settings, spans=spans))
        if self.admission is not None:
            admission = self.admission(scheduler.policies.admission.env)
            scheduler.policies = replace(scheduler.policies, admission=admission)
            scheduler.admissions._policy = admission
        return scheduler

    def source(self, trace: Trace, num_output_tokens: dict[int, int] | None = None) -> TraceSource:
        config = ReplayConfig(
            self.settings.block_size,
            self.arrivals,
            self.concurrency,
            self.max_model_len,
            beam_width=self.beam_width,
        )
        return TraceSource(trace, config, num_output_tokens)


@dataclass(frozen=True)
class EngineResult:
    """A finished engine run and what is asked of it."""

    scheduler: Scheduler
    executor: TorchExecutor
    shadow: Shadow
    inputs: RecordedInputs
    inputs_log: InputsLog
    ended: EngineRun

    def outputs(self) -> dict[int, list[list[int]]]:
        """The tokens produced, by request and sample."""
        return {
            request.request_id: [
                self.executor.tokens.outputs(request.request_id, index) for index in range(request.num_samples)
            ]
            for request in self.scheduler.recorder.done
        }

    def referenced_blocks(self) -> list[int]:
        """Blocks in use while each step ran."""
        recorder = self.scheduler.recorder
        return recorder.step_referenced_blocks.expand(recorder.num_steps_begun).tolist()

    def num_of(self, event: Event) -> int:
        return int((self.scheduler.log.rows()[:, 1] == event).sum())


def run_trace(trace: Trace, setup: EngineSetup) -> EngineResult:
    """Runs the trace on the tiny engine, shadow tags on, memory full of NaN to begin with."""
    settings, decoder = setup.settings, setup.decoder()
    assert settings.num_blocks is not None
    scheduler = setup.scheduler(spans=False)
    groups, has_large_pages = decoder.shape.kv_groups(), isinstance(scheduler.tables, LcmTables)
    pages = SmallPages.of(groups, settings.groups) if has_large_pages else None
    allocate = partial(allocate_large_pages, pages=pages) if has_large_pages else allocate_kv
    kv, host_kv = (
        allocate(decoder.shape, num_blocks, settings.block_size, decoder.dtype, "cpu")
        for num_blocks in (settings.num_blocks, settings.host_blocks)
    )
    for memory in (kv, host_kv):
        for tensor in memory.tensors:
            tensor.fill_(torch.nan)
    prompts = setup.tokens or TraceTokens(trace, corpus_bytes(), decoder.shape.vocab_size)
    tokens = TokenStore(prompts, setup.output, decoder.shape.max_positions)
    windows = tuple(group.window_tokens for group in groups)
    layers = pages.layers if pages else ()
    shadow = Shadow.beside(settings.num_blocks, settings.host_blocks, settings.block_size, windows, layers)
    others = {"group_tables": pages.tables} if pages else {}
    executor = setup.executor(decoder, kv, host_kv, tokens, setup.sampling, shadow, **others)
    inputs_log = InputsLog()
    ended = run_engine(setup.source(trace), scheduler, executor, setup.clock(), inputs_log)
    check_integrity(scheduler)
    return EngineResult(scheduler, executor, shadow, inputs_log.recorded(), inputs_log, ended)


def repeat_in_simulator(trace: Trace, setup: EngineSetup, inputs: RecordedInputs, spans: bool = True) -> Scheduler:
    """Replays a recorded engine run in the simulator."""
    scheduler = setup.scheduler(spans)
    source, cost = setup.source(trace, inputs.num_output_tokens), RecordedCost(inputs.durations_ps)
    run_simulation(source, scheduler, cost, RecordedBeams(inputs.parents))
    return scheduler


def assert_lockstep(trace: Trace, setup: EngineSetup, engine: EngineResult) -> None:
    """Simulator and engine decided the same, at the same times, whether the simulator fast-forwards or not."""
    for spans in (True, False):
        simulated = repeat_in_simulator(trace, setup, engine.inputs, spans)
        difference = first_difference(simulated.log.rows(), engine.scheduler.log.rows())
        assert difference is None, str(difference)
        assert simulated.log.digest() == engine.scheduler.log.digest()
        assert _times(simulated) == _times(engine.scheduler)
        assert simulated.recorder.step_duration_ps == engine.scheduler.recorder.step_duration_ps


def _times(scheduler: Scheduler) -> list[tuple[Any, ...]]:
    return [
        (r.request_id, r.arrival_ps, r.first_scheduled_ps, r.first_token_ps, r.finish_ps, r.outcome)
        for r in scheduler.recorder.done
    ]
