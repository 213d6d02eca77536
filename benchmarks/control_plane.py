"""What the control plane of the engine costs a step: CPU time per running request, in single steps, without the model.

`python benchmarks/control_plane.py [--profile]`. The engine's own loop runs a trace in which 64 or 256 requests decode
side by side; the forward pass is replaced by one that returns zeros for a vocabulary of 32 tokens. What is left is
scheduling, the batch's tensors, the appended tokens and the commit, with all records that a run keeps.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from core.plan import StepPlan
from engine.batch import BatchInput
from engine.decoder_shape import DecoderShape
from engine.executor import PreparedStep, StepOutput
from engine.kv_cache import PagedKV
from engine.model import Decoder
from engine.tokenizer import ByteCodec
from engine.weights import random_weights
from kvtwin.api import compose
from kvtwin.engine_runs import EngineSession, load_engine_run
from kvtwin.engine_setup import LoadedModel
from kvtwin.progress import Silent
from traces.schema import Trace

NUM_PROMPT_TOKENS, NUM_OUTPUT_TOKENS, BLOCK_SIZE = 512, 400, 16
NUM_STEPS, NUM_RUNS = 300, 3
ASKED_US = 10.0
RESULT = Path(__file__).parent / "results" / "control_plane.md"


class NullDecoder(Decoder):
    """Stands where a model would; computes nothing."""

    def __init__(self) -> None:
        shape = DecoderShape(1, 8, 1, 1, 8, 8, vocab_size=32, max_positions=4096)
        super().__init__(shape, random_weights(shape, seed=0))

    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor:
        return torch.zeros(len(batch.sample_rows), 32)


class TimedExecutor:
    """The executor, with the CPU time of two of its calls kept apart from the rest of the loop's."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.prepare_ns: list[int] = []
        self.run_ns: list[int] = []

    def prepare(self, plan: StepPlan) -> PreparedStep:
        return self._timed(self.prepare_ns, self._executor.prepare, plan)

    def begin(self, step: PreparedStep) -> None:
        self._executor.begin(step)

    def run(self, step: PreparedStep) -> StepOutput:
        return self._timed(self.run_ns, self._executor.run, step)

    def _timed(self, spent_ns: list[int], call: Callable[[Any], Any], argument: Any) -> Any:
        start_ns = time.process_time_ns()
        returned = call(argument)
        spent_ns.append(time.process_time_ns() - start_ns)
        return returned


def new_session(num_running: int, churn: bool) -> EngineSession:
    """A run in which `num_running` requests decode. With `churn` they end one after another, and others follow."""
    num_requests = 2 * num_running if churn else num_running
    lengths = np.full(num_requests, NUM_OUTPUT_TOKENS)
    if churn:
        lengths[:num_running] = np.linspace(20, NUM_OUTPUT_TOKENS, num_running).astype(int)
    trace = Trace("side by side", np.zeros(num_requests, np.int64), np.full(num_requests, NUM_PROMPT_TOKENS), lengths)
    config, policies = compose(
        "engine",
        trace,
        [f"scheduler.max_num_seqs={num_running}", "pool.num_blocks=16000", "scheduler.max_batch_tokens=1000000"],
        {},
    )
    model = LoadedModel(NullDecoder(), ByteCodec(512), "none", "")
    return load_engine_run(config, policies, trace, model).start(Silent())


def step_costs_us(num_running: int, churn: bool) -> np.ndarray:
    """CPU microseconds per running request [num_steps, 3]: plan read; batch, tokens; scheduled, committed, recorded."""
    session = new_session(num_running, churn)
    loop = session.loop
    loop.take_turn(3)  # prompts
    loop._executor = timed = TimedExecutor(loop._executor)
    loop_ns = []
    for _ in range(NUM_STEPS):
        start_ns = time.process_time_ns()
        loop._advance()
        loop_ns.append(time.process_time_ns() - start_ns)
    if len(session.scheduler.running) < 0.9 * num_running:
        raise RuntimeError("the requests ended too early")
    parts = np.array([timed.prepare_ns, timed.run_ns, loop_ns], dtype=np.float64).T
    parts[:, 2] -= parts[:, 0] + parts[:, 1]
    return parts / 1e3 / num_running


def table() -> str:
    lines = [
        f"CPU microseconds per running request and step; {NUM_RUNS * NUM_STEPS} steps a row;"
        f" {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}",
        "",
        "| running | plan read | batch built, tokens appended | scheduled, committed, recorded | total: median step |"
        " quietest tenth of steps | asked |",
        "|---|---|---|---|---|---|---|",
    ]
    for churn in (False, True):
        for num_running in (64, 256):
            steps = np.concatenate([step_costs_us(num_running, churn) for _ in range(NUM_RUNS)])
            total = steps.sum(axis=1)
            label = f"{num_running}{', some ending and others starting' if churn else ''}"
            parts = " | ".join(f"{us:.2f}" for us in np.median(steps, axis=0))
            lines.append(
                f"| {label} | {parts} | {np.median(total):.2f} | {np.quantile(total, 0.05):.2f} | {ASKED_US:.0f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    if parser.parse_args().profile:
        session = new_session(256, churn=False)
        session.loop.take_turn(3)
        with cProfile.Profile() as profile:
            session.loop.take_turn(NUM_STEPS)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    text = table()
    print(text)
    RESULT.write_text(text)


if __name__ == "__main__":
    main()
