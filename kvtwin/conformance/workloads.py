"""Small, crowded workloads, and what a scheduler decides of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from core.build import PolicyFactories, PoolConfig, build_scheduler
from core.columns import requests_of
from core.decision_log import DecisionLog
from core.interfaces import LeafRanking
from core.recorder import Recorder
from core.request import Outcome
from core.scheduler import Scheduler, SchedulerConfig
from kvtwin.conformance.fault import PolicyFault
from kvtwin.conformance.subject import Subject
from kvtwin.failures import failure_line
from kvtwin.foreseeing import foresight_of
from policies.admission.reservation import Reservation
from policies.allocation.paged import Paged
from policies.batching import Chunked
from policies.eviction.lru import LRU
from policies.preemption.last_arrived import LastArrived
from policies.queueing.fcfs import FCFS
from sim.cost_model import StepWork
from sim.linear_cost import LinearCost
from sim.simulation import run_simulation
from traces.ragged import Ragged
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.schema import Trace

RAISES = "raises nothing"
ENDS = "everybody gets done"
STEP_PS = 10  # arrivals at its multiples tie with the ends of steps
MOST_STEPS = 20_000  # the largest workload, one token a step, over and over, is far below
_NUM_FAMILIES = 3
USUAL = PolicyFactories(LRU, Paged, LastArrived, Chunked, FCFS, partial(Reservation, full_prompt=False))


class Asked(NamedTuple):
    """One request. Its first `num_shared` blocks are those of all of its family; `text` names what is its own."""

    text: int
    arrival_ps: int
    num_prompt: int
    num_output: int
    family: int
    num_shared: int
    priority: int

    def __str__(self) -> str:
        return (
            f"arrives at {self.arrival_ps} ps, {self.num_prompt} prompt and {self.num_output} output tokens, "
            f"priority {self.priority}, begins with {self.num_shared} blocks of family {self.family}"
        )

    def hash_ids(self, block_size: int) -> list[int]:
        depths = range(-(-self.num_prompt // block_size))
        own = 1000 + 100 * self.text
        return [self.family * 100 + depth if depth < self.num_shared else own + depth for depth in depths]


@dataclass(frozen=True)
class Workload:
    asked: tuple[Asked, ...]
    pool: PoolConfig
    scheduler: SchedulerConfig
    prefix_caching: bool
    seed: int

    def __str__(self) -> str:
        pool, scheduler = self.pool, self.scheduler
        return (
            f"pool.num_blocks={pool.num_blocks}, pool.block_size_tokens={pool.block_size_tokens}, "
            f"pool.host_blocks={pool.host_blocks}, pool.free_order={pool.free_order}, "
            f"pool.leaf_first={pool.leaf_first}, "
            f"scheduler.max_num_seqs={scheduler.max_num_seqs}, "
            f"scheduler.max_batch_tokens={scheduler.max_batch_tokens}, "
            f"scheduler.chunked_prefill={scheduler.chunked_prefill}, scheduler.prefix_caching={self.prefix_caching}, "
            f"seed={self.seed}"
        )

    def story(self) -> list[str]:
        return [str(self), *(f"request {row} {each}" for row, each in enumerate(self.asked))]

    def plainer(self) -> list[Workload]:
        """The same in worlds that policies seldom refuse: nothing shared, nothing swapped, blocks of one token."""
        plain = replace(self, prefix_caching=False, pool=replace(self.pool, host_blocks=0, leaf_first=False))
        num_tokens = self.pool.block_size_tokens * (self.pool.num_blocks or 1)
        return [plain, replace(plain, pool=replace(plain.pool, num_blocks=num_tokens, block_size_tokens=1))]

    def with_requests(self, asked: Sequence[Asked]) -> Workload:
        return replace(self, asked=tuple(asked))


def random_workload(source: random.Random, seed: int) -> Workload:
    """Up to nine requests, and a pool that hardly holds the largest of them twice."""
    block_size = source.randint(1, 6)
    times = sorted(source.choice([source.randrange(25) * STEP_PS, source.randrange(250)]) for _ in range(9))
    asked = tuple(
        Asked(
            number,
            times[number],
            source.randint(1, 24),
            source.randint(1, 16),
            source.randrange(_NUM_FAMILIES),
            source.randint(0, 6),
            source.randint(0, 2),
        )
        for number in range(source.randint(2, 9))
    )
    largest = max(-(-(each.num_prompt + each.num_output - 1) // block_size) for each in asked)
    is_chunked = source.random() < 0.75
    pool = PoolConfig(
        source.randint(largest, 2 * largest + 1),
        block_size,
        source.choice([0, 6, 50]),
        source.choice(["unhashed_first", "append_all"]),
        leaf_first=source.random() < 0.3,
    )
    scheduler = SchedulerConfig(
        source.randint(1, 8), source.randint(2, 40) if is_chunked else 40, chunked_prefill=is_chunked
    )
    return Workload(asked, pool, scheduler, source.random() < 0.8, seed)


@dataclass(frozen=True)
class Ran:
    """What was decided, and how and when everybody ended, by request."""

    rows: np.ndarray
    ended: dict[int, tuple[Outcome, int]]


class CountedSteps(LinearCost):
    """Refuses to go on for ever."""

    def __init__(self) -> None:
        super().__init__(STEP_PS * 1e-12, prefill_token_s=1e-12)
        self._num_asked = 0

    def step_ps(self, work: StepWork) -> int:
        self._num_asked += 1
        if self._num_asked > MOST_STEPS:
            raise PolicyFault(ENDS, f"the run goes on after {MOST_STEPS:,} steps: nobody gets ahead")
        return super().step_ps(work)


def run_workload(workload: Workload, subject: Subject, factory: Callable[..., Any], single_steps: bool) -> Ran:
    """Simulates it with the policies of `factory` in place of the usual one of their kind.

    Raises PolicyFault where that fails or does not end, and InputError where the policy refuses such a world.
    """
    factories = replace(USUAL, **{subject.kind.group: factory})
    config = replace(workload.scheduler, single_steps=single_steps)
    pool = _as_a_tree(workload.pool) if subject.kind.base is LeafRanking else workload.pool
    log = DecisionLog()
    trace, replay = workload_trace(workload), ReplayConfig(workload.pool.block_size_tokens, Arrivals.RECORDED, 1)
    scheduler = build_scheduler(
        config,
        pool,
        factories,
        log,
        Recorder(),
        workload.prefix_caching,
        seed=workload.seed,
        foresight=foresight_of(trace, replay, num_groups=1) if subject.policy.clairvoyant else None,
    )
    source = TraceSource(trace, replay)
    play(workload, lambda: run_simulation(source, scheduler, CountedSteps()), lambda: scheduler.step)
    return Ran(log.rows(), how_ended(workload, [scheduler]))


def play(workload: Workload, run: Callable[[], object], step: Callable[[], int]) -> None:
    """Raises PolicyFault, with the step at which it happened, for whatever goes wrong."""
    try:
        run()
    except PolicyFault as fault:
        raise PolicyFault(fault.rule, f"step {step()}: {fault.what}", workload.story()) from fault
    except Exception as error:
        raise PolicyFault(RAISES, f"step {step()}: {failure_line(error)}", workload.story()) from error


def how_ended(workload: Workload, schedulers: Sequence[Scheduler]) -> dict[int, tuple[Outcome, int]]:
    """By request. Raises PolicyFault where one was left waiting."""
    ended: dict[int, tuple[Outcome, int]] = {}
    for requests in map(requests_of, schedulers):
        numbers, finish_ps = requests.column("request_id").tolist(), requests.column("finish_ps").tolist()
        ended |= dict(zip(numbers, zip(requests.outcomes(), finish_ps, strict=True), strict=True))
    ended = dict(sorted(ended.items()))
    left = [number for number, (outcome, _) in ended.items() if outcome is Outcome.UNFINISHED]
    if left:
        raise PolicyFault(ENDS, f"request {left[0]} waits for ever, and the machine idles", workload.story())
    return ended


def _as_a_tree(pool: PoolConfig) -> PoolConfig:
    return replace(pool, prefix_index="radix", leaf_first=False, host_blocks=0, free_order="unhashed_first")


def workload_trace(workload: Workload) -> Trace:
    asked, block_size = workload.asked, workload.pool.block_size_tokens

    def column(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    return Trace(
        "random",
        column([each.arrival_ps for each in asked]),
        column([each.num_prompt for each in asked]),
        column([each.num_output for each in asked]),
        hash_block_tokens=block_size,
        hash_ids=Ragged.of_ids([each.hash_ids(block_size) for each in asked]),
        priority=column([each.priority for each in asked]),
    )
