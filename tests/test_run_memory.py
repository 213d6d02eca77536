"""What a run keeps of its requests: they are made when they arrive, and leave as a row of small integers."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

import core.request
from core.request import Request
from kvtwin.composition import compose_config
from kvtwin.experiment import Experiment
from kvtwin.simulating import load_simulation
from sim.cost_model import CostModel, StepWork
from sim.linear_cost import LinearCost
from sim.simulation import run_simulation
from traces.schema import Trace

STEP = LinearCost(0.01)


def experiment_of(num_requests: int) -> Experiment:
    """Ten requests a second, each of which takes an eighth of one: they come and go."""
    arrival_ps = np.arange(num_requests, dtype=np.int64) * 10**11
    prompts, outputs = (np.full(num_requests, number, dtype=np.int64) for number in (20, 12))
    words = ["steps=false", "attribution=false", "scheduler.prefix_caching=false", "pool.num_blocks=1000"]
    return load_simulation(compose_config("sim", words), trace=Trace("evenly", arrival_ps, prompts, outputs))


def run(experiment: Experiment, cost: CostModel = STEP) -> None:
    scheduler = experiment.build_for_simulation(experiment.new_log())
    run_simulation(experiment.source(), scheduler, cost)
    assert len(scheduler.recorder.requests) == experiment.trace.num_requests


class Counting(CostModel):
    """Sees how many requests there are in the midst of each fiftieth step."""

    def __init__(self) -> None:
        self.num_alive: list[int] = []

    def step_ps(self, work: StepWork) -> int:
        if work.step % 50 == 0:
            self.num_alive.append(sum(type(each) is Request for each in gc.get_objects()))
        return STEP.step_ps(work)


def test_there_are_no_requests_but_those_that_have_come_and_are_not_done():
    if not str(core.request.__file__).endswith(".py"):
        pytest.skip("objects of machine code are not told by the collector")
    gc.collect()
    counting, before = Counting(), sum(type(each) is Request for each in gc.get_objects())
    run(experiment_of(600), counting)
    assert len(counting.num_alive) > 100
    assert max(counting.num_alive) - before <= 5


def peak_bytes(num_requests: int) -> int:
    experiment = experiment_of(num_requests)
    gc.collect()
    tracemalloc.start()
    run(experiment)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_request_that_is_done_takes_less_than_two_hundred_bytes():
    """So a million fit into 400 MB with the program: plans are condensed as they come, decisions digested.

    Plans are condensed some ten thousand at a time. What that takes for a moment is the same from 6,000 requests on.
    """
    fewer, more = peak_bytes(6_000), peak_bytes(12_000)
    assert (more - fewer) / 6_000 < 200
