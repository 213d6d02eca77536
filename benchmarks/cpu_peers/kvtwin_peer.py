"""kvtwin's engine, scheduling included: `python kvtwin_peer.py FOLDER NUM_THREADS`. FOLDER is not read."""

from __future__ import annotations

import sys

import numpy as np
from turns import Case, Turns

from engine.kernel_sets import name_of
from kvtwin.api import compose
from kvtwin.binding import instantiate_one
from kvtwin.engine_runs import load_engine_run
from kvtwin.engine_setup import LoadedModel, load_model
from kvtwin.progress import Silent
from traces.schema import Trace

SETTINGS = ["model=smollm2_135m", "engine.weights=real", "engine.dtype=bfloat16", "scheduler.max_batch_tokens=8192"]


def run(case: Case, settings: list[str], model: LoadedModel, turns: Turns) -> None:
    count = np.zeros(case.batch, dtype=np.int64)
    trace = Trace("side by side", count, count + case.prompt, count + case.steps + 1)
    num_blocks = case.batch * (-(-(case.prompt + case.steps + 1) // 16) + 1)
    config, policies = compose("engine", trace, [*settings, f"pool.num_blocks={num_blocks}"], {})
    loop = load_engine_run(config, policies, trace, model).start(Silent()).loop
    turns.begin()
    for _ in range(1 + case.steps):
        loop._advance()  # not take_turn: that runs a probe of the machine's speed now and then
        turns.step_done()


def main() -> None:
    settings = [*SETTINGS, f"engine.threads={sys.argv[2]}"]
    turns = Turns()
    config, _ = compose("engine", "chat_sample", settings, {})
    model = load_model(config, instantiate_one(config.model, "model"))
    for case in turns.cases(f"kvtwin, kernels {name_of(model.decoder.kernels)}"):
        run(case, settings, model, turns)


if __name__ == "__main__":
    main()
