"""A small world for tests of the control plane: traces by hand, schedulers by settings, steps of one second."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from core.build import PolicyFactories, PoolConfig, build_scheduler
from core.columns import Arrays, StepTimes, gap_arrays, request_arrays, requests_of, step_arrays
from core.condenser import Condenser
from core.content import BlockKeys, PrivateKeys
from core.decision_log import DecisionLog, Event
from core.even_plans import even_plans
from core.foresight import Foresight
from core.interfaces import EvictionPolicy, LeafRanking, PolicyEnv
from core.kv_group import KVGroup
from core.plan import StepPlan, StepResult
from core.recorder import Recorder
from core.request import Request
from core.scheduler import Scheduler, SchedulerConfig
from core.step_totals import StepTotals
from core.units import PS_PER_S, to_ps
from kvtwin.foreseeing import foresight_of
from policies.admission.reservation import Reservation
from policies.allocation.paged import Paged
from policies.batching import Chunked
from policies.eviction.lru import LRU
from policies.preemption.last_arrived import LastArrived
from policies.preemption.lowest_priority import LowestPriority
from policies.queueing.fcfs import FCFS
from policies.queueing.priority import Priority
from sim.cost_model import CostModel
from sim.linear_cost import LinearCost
from sim.simulation import run_simulation
from traces.ragged import Ragged
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.schema import Trace

UNIT_STEPS = LinearCost(1.0)  # every step takes one second, whatever it does


@dataclass(frozen=True)
class Settings:
    """Everything that shapes decisions, with the defaults of a small vLLM."""

    num_blocks: int | None
    block_size: int = 16
    max_num_seqs: int = 256
    budget: int = 8192
    caching: bool = True
    chunked: bool = True
    long_prefill: int = 0
    max_model_len: int | None = None
    full_prompt: bool = True
    watermark: float = 0.0
    priority: bool = False
    mode: str = "recompute"
    host_blocks: int = 0
    free_order: str = "unhashed_first"
    keep_cancelled: bool = False
    publication: str = "schedule"
    asynchronous: bool = False
    admit_after_preemption: bool = False
    own_preemption_ends_step: bool = False
    batching: Any = Chunked
    eviction: Callable[[PolicyEnv], EvictionPolicy | LeafRanking] = LRU
    prefix_index: str = "hash"
    preemption: Any = None  # a class instead of the one that goes with `priority` and `mode`
    queue: Any = None  # a class instead of the one that goes with `priority`
    admission: Any = None  # a class instead of `Reservation` with `full_prompt` and `watermark`
    leaf_first: bool = False
    allocation: Any = Paged
    groups: tuple[KVGroup, ...] = (KVGroup(1),)
    spans: bool = True
    attribution: bool = True
    foresees: bool = False  # policies are told what the trace will ask for
    seed: int = 0


class KeepingRecorder(Recorder):
    """Also keeps the requests themselves, and lists what it counts."""

    def __init__(self, condenser: Condenser | None = None) -> None:
        super().__init__(condenser)
        self.done: list[Request] = []

    def on_done(self, request: Request) -> None:
        super().on_done(request)
        self.done.append(request)

    @property
    def step_duration_ps(self) -> list[int]:
        return [int(duration_ps) for duration_ps in StepTimes.of(self).duration_ps]

    def per_step(self, column: str) -> list[int]:
        """One of the columns of `steps.npz`."""
        return [int(value) for value in step_arrays(self, self.requests, None)[column]]


def recorder_of(scheduler: Scheduler) -> KeepingRecorder:
    recorder = scheduler.recorder
    assert isinstance(recorder, KeepingRecorder)
    return recorder


def scheduler_of(
    settings: Settings,
    condenser: Condenser | None = None,
    by_ids: bool = False,
    foresight: Foresight | None = None,
) -> Scheduler:
    """A fresh control plane. `by_ids`: as the simulator's, of requests with one sample each."""
    victim = settings.preemption or partial(LowestPriority if settings.priority else LastArrived, mode=settings.mode)
    reservation = partial(Reservation, full_prompt=settings.full_prompt, watermark=settings.watermark)
    factories = PolicyFactories(
        eviction=settings.eviction,
        allocation=settings.allocation,
        preemption=victim,
        batching=settings.batching,
        queue=settings.queue or (Priority if settings.priority else FCFS),
        admission=settings.admission or reservation,
    )
    config = SchedulerConfig(
        max_num_seqs=settings.max_num_seqs,
        max_batch_tokens=settings.budget,
        chunked_prefill=settings.chunked,
        long_prefill_threshold_tokens=settings.long_prefill,
        max_model_len=settings.max_model_len,
        keep_cancelled_registrations=settings.keep_cancelled,
        publication=settings.publication,
        async_scheduling=settings.asynchronous,
        admit_after_preemption=settings.admit_after_preemption,
        own_preemption_ends_step=settings.own_preemption_ends_step,
        single_steps=not settings.spans,
    )
    pool = PoolConfig(
        settings.num_blocks,
        settings.block_size,
        settings.host_blocks,
        settings.free_order,
        leaf_first=settings.leaf_first,
        prefix_index=settings.prefix_index,
    )
    return build_scheduler(
        config,
        pool,
        factories,
        DecisionLog(),
        KeepingRecorder(condenser),
        settings.caching,
        settings.groups,
        settings.seed,
        foresight,
        attribution=settings.attribution,
        by_ids=by_ids,
    )


def trace_of(
    arrival_s: Sequence[float],
    num_prompt_tokens: Sequence[int],
    num_output_tokens: Sequence[int],
    hash_ids: Sequence[Sequence[int]] | None = None,
    hash_block_tokens: int | None = None,
    segments: Sequence[Sequence[tuple[int, int]]] | None = None,
    **columns: Sequence[int],
) -> Trace:
    """A trace by its columns; further ones (priority, num_samples, cancel_after_ps, ...) by name."""
    trace = Trace(
        "by hand",
        np.array([to_ps(time_s) for time_s in arrival_s], dtype=np.int64),
        np.array(num_prompt_tokens, dtype=np.int64),
        np.array(num_output_tokens, dtype=np.int64),
        hash_block_tokens=hash_block_tokens,
        hash_ids=None if hash_ids is None else Ragged.of_ids(hash_ids),
        prompt_segments=None if segments is None else Ragged.of_segments(segments),
        **{name: np.array(values, dtype=np.int64) for name, values in columns.items()},  # type: ignore[arg-type]
    )
    trace.validate()
    return trace


Decided = tuple[int, str, int, int]


def decisions_of(scheduler: Scheduler, *events: Event) -> list[Decided]:
    """(step, event, request, value) of these events, in order."""
    rows = scheduler.log.rows().tolist()
    return [(step, Event(event).name, who, value) for step, event, who, value in rows if event in events]


@dataclass(frozen=True)
class Run:
    """A finished simulation, and the questions that tests ask of it."""

    scheduler: Scheduler
    num_rows: int

    def request(self, row: int) -> Request:
        return next(request for request in self.requests() if request.request_id == row)

    def requests(self) -> list[Request]:
        scheduler = self.scheduler
        held = [*scheduler.running, *scheduler.waiting]
        return sorted([*recorder_of(scheduler).done, *held], key=lambda request: request.request_id)

    @property
    def num_steps(self) -> int:
        return self.scheduler.recorder.num_steps

    @property
    def num_plans(self) -> int:
        return self.scheduler.recorder.num_plans

    @property
    def num_refused_spans(self) -> int:
        return self.scheduler.span_limit.num_refused

    @property
    def num_preemptions(self) -> int:
        return sum(request.num_preemptions for request in self.requests())

    @property
    def num_prefill_tokens(self) -> int:
        return sum(request.num_prefill_tokens for request in self.requests())

    def decisions(self, *events: Event) -> list[Decided]:
        return decisions_of(self.scheduler, *events)

    def request_arrays(self) -> Arrays:
        return request_arrays(requests_of(self.scheduler), self.num_rows)

    def step_arrays(self) -> Arrays:
        return step_arrays(self.scheduler.recorder, requests_of(self.scheduler), self.scheduler.tables.pool.num_blocks)

    def step_totals(self) -> StepTotals:
        totals, recorder = StepTotals(), self.scheduler.recorder
        totals.add(even_plans(recorder), recorder, requests_of(self.scheduler))
        return totals

    def gaps_s(self) -> list[float]:
        """Every inter-token gap, sorted."""
        gaps = gap_arrays(self.scheduler.recorder)
        return sorted(np.repeat(gaps["gap_s"], gaps["multiplicity"]).round(15).tolist())


def simulate(
    trace: Trace,
    settings: Settings,
    cost: CostModel = UNIT_STEPS,
    arrivals: Arrivals = Arrivals.RECORDED,
    concurrency: int = 1,
    condenser: Condenser | None = None,
) -> Run:
    """Replays the trace to its end in the simulator."""
    config = ReplayConfig(settings.block_size, arrivals, concurrency)
    foresight = foresight_of(trace, config, len(settings.groups)) if settings.foresees else None
    scheduler = scheduler_of(settings, condenser, settings.spans and trace.num_samples is None, foresight)
    run_simulation(TraceSource(trace, config), scheduler, cost)
    return Run(scheduler, trace.num_requests)


class Bench:
    """A scheduler driven by hand, a step a second; the pool's integrity is proved at every turn."""

    def __init__(self, settings: Settings) -> None:
        self.scheduler = scheduler_of(settings)
        self.pool = self.scheduler.tables.pool
        self.now_ps = 0
        self._num_requests = 0

    def request(self, num_prompt: int, num_output: int, keys: BlockKeys | None = None, **fields: int) -> Request:
        """A new request, not yet added."""
        number = self._num_requests
        self._num_requests += 1
        return Request(number, self.now_ps, num_prompt, num_output, keys or PrivateKeys(number), **fields)

    def add(self, num_prompt: int, num_output: int, keys: BlockKeys | None = None, **fields: int) -> Request:
        request = self.request(num_prompt, num_output, keys, **fields)
        self.scheduler.add(request, self.now_ps)
        return request

    def cancel(self, request: Request) -> None:
        self.scheduler.cancel(request, self.now_ps)
        check_integrity(self.scheduler)

    @contextmanager
    def in_step(self) -> Iterator[StepPlan | None]:
        """Between schedule and commit of one step."""
        plan = self.scheduler.schedule(self.now_ps)
        check_integrity(self.scheduler)
        yield plan
        if plan is not None and not plan.is_empty:
            self.scheduler.commit(plan, StepResult((PS_PER_S,)))
            self.now_ps += PS_PER_S
        check_integrity(self.scheduler)

    def step(self) -> StepPlan | None:
        with self.in_step() as plan:
            return plan

    def steps(self, number: int) -> list[StepPlan | None]:
        return [self.step() for _ in range(number)]

    def drain(self, at_most: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        while self.scheduler.running or self.scheduler.waiting:
            assert at_most > 0, "the scheduler does not get done"
            self.step()
            at_most -= 1

    def decisions(self, *events: Event) -> list[Decided]:
        return decisions_of(self.scheduler, *events)


def check_integrity(scheduler: Scheduler) -> None:
    """Block states partition the pool, counts equal the tables, and the host holds what swapped requests need."""
    live = [sequence for request in scheduler.running for sequence in request.live]
    scheduler.tables.check_integrity([*live, *scheduler.kept])
    for sequence in live:
        for group, table in zip(scheduler.tables.groups, sequence.tables, strict=True):
            num_expired = group.num_expired_blocks(sequence.num_computed, scheduler.tables.block_size)
            assert None not in table[num_expired:], "a block that the next token attends to is missing"
    for request in scheduler.waiting:
        assert not any(table for sequence in request.sequences for table in sequence.tables), (
            "a waiting request has blocks"
        )
    host = scheduler.tables.swapping.host
    swapped = [host_id for request in scheduler.waiting if request.swapped for host_id in request.swapped.host_ids]
    assert len(set(swapped)) == len(swapped), "a host block is used twice"
    assert host.num_available + len(swapped) == host.num_blocks, "host blocks leak"
