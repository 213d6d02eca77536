"""What the control plane of the engine costs a step: CPU time per running request, in single steps, without the model.

`python benchmarks/control_plane.py [--profile]`. The engine's own loop runs a trace in which 64 or 256 requests decode
side by side; the forward pass is replaced by one that returns the same logits for everybody, of a vocabulary of 32
tokens with a clear best one (near-ties are noted one by one, and a model seldom has any). What is left is scheduling,
the batch's tensors, the appended tokens and the commit, with all records that a run keeps. Taking the best tokens is
the model's business; what that costs at least, with next to no vocabulary, is shown apart.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from core.plan import StepPlan
from engine.batch import BatchInput
from engine.decoder_shape import DecoderShape
from engine.draws import Draws
from engine.executor import PreparedStep, StepOutput
from engine.kv_cache import PagedKV
from engine.loop import StepExecutor
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
        self._logits = torch.arange(32.0).flip(0).repeat(512, 1)

    def forward(self, batch: BatchInput, kv: PagedKV) -> Tensor:
        return self._logits[: len(batch.sample_rows)]


class Meter:
    """CPU nanoseconds by name, a list of calls each."""

    def __init__(self) -> None:
        self.spent_ns: dict[str, list[int]] = defaultdict(list)

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed_call(*arguments: Any) -> Any:
            start_ns = time.process_time_ns()
            returned = call(*arguments)
            self.spent_ns[name].append(time.process_time_ns() - start_ns)
            return returned

        return timed_call


class TimedExecutor:
    """The executor, with the CPU time of two of its calls kept apart from the rest of the loop's."""

    def __init__(self, executor: StepExecutor, meter: Meter) -> None:
        self.prepare: Callable[[StepPlan], PreparedStep] = meter.timed("prepare", executor.prepare)
        self.begin = executor.begin
        self.run: Callable[[PreparedStep], StepOutput] = meter.timed("run", executor.run)


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
    """CPU microseconds per running request [num_steps, 4]: plan read; batch, tokens; scheduled, committed, recorded;
    best tokens taken.
    """
    session, meter = new_session(num_running, churn), Meter()
    loop = session.loop
    loop.take_turn(3)  # prompts
    loop._executor = TimedExecutor(loop._executor, meter)
    advance = meter.timed("step", loop._advance)
    with patch.object(Draws, "compute", meter.timed("sample", Draws.compute)):
        for _ in range(NUM_STEPS):
            advance()
    if len(session.scheduler.running) < 0.9 * num_running:
        raise RuntimeError("the requests ended too early")
    spent = {name: np.array(spent_ns) / 1e3 / num_running for name, spent_ns in meter.spent_ns.items()}
    rest = spent["step"] - spent["prepare"] - spent["run"]
    return np.stack([spent["prepare"], spent["run"] - spent["sample"], rest, spent["sample"]], axis=1)


def table() -> str:
    lines = [
        f"CPU microseconds per running request and step; {NUM_RUNS * NUM_STEPS} steps a row;"
        f" {os.cpu_count()} CPUs, load average {os.getloadavg()[0]:.1f}",
        "",
        "| running | plan read | batch built, tokens appended | scheduled, committed, recorded | total: median step |"
        " quietest tenth of steps | asked | with the best tokens taken: median step |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for churn in (False, True):
        for num_running in (64, 256):
            steps = np.concatenate([step_costs_us(num_running, churn) for _ in range(NUM_RUNS)])
            total, whole = steps[:, :3].sum(axis=1), steps.sum(axis=1)
            label = f"{num_running}{', some ending and others starting' if churn else ''}"
            parts = " | ".join(f"{us:.2f}" for us in np.median(steps[:, :3], axis=0))
            lines.append(
                f"| {label} | {parts} | {np.median(total):.2f} | {np.quantile(total, 0.05):.2f} | {ASKED_US:.0f} |"
                f" {np.median(whole):.2f} |"
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
