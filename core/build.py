"""Wires pool, tables, policies and scheduler of one replica together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.block_pool import BlockPool, FreeOrder
from core.block_tables import BlockTables
from core.decision_log import DecisionLog
from core.interfaces import (
    AdmissionPolicy,
    AllocationPolicy,
    BatchPolicy,
    EvictionPolicy,
    PolicyEnv,
    PreemptionPolicy,
    QueuePolicy,
)
from core.kv_group import KVGroup
from core.prefix_index import HashIndex
from core.recorder import Recorder
from core.scheduler import Policies, Scheduler, SchedulerConfig
from core.swap import HostPool


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`num_blocks` counts usable blocks (None: unbounded); ids start at `first_block_id`."""

    num_blocks: int | None
    block_size_tokens: int = 16
    host_blocks: int = 0
    free_order: str = "unhashed_first"
    first_block_id: int = 0


@dataclass(frozen=True, slots=True)
class PolicyFactories:
    """Each builds one policy from its environment: a class with its parameters bound."""

    eviction: Callable[[PolicyEnv], EvictionPolicy]
    allocation: Callable[[PolicyEnv], AllocationPolicy]
    preemption: Callable[[PolicyEnv], PreemptionPolicy]
    batching: Callable[[PolicyEnv], BatchPolicy]
    queue: Callable[[PolicyEnv], QueuePolicy]
    admission: Callable[[PolicyEnv], AdmissionPolicy]


@dataclass(slots=True)
class _Clock:
    """Lets policies ask the scheduler for the time before the scheduler exists."""

    scheduler: Scheduler | None = None

    def now(self) -> int:
        return 0 if self.scheduler is None else self.scheduler.now_ps


def build_scheduler(
    config: SchedulerConfig,
    pool: PoolConfig,
    factories: PolicyFactories,
    log: DecisionLog,
    recorder: Recorder,
    prefix_caching: bool = True,
    groups: tuple[KVGroup, ...] = (KVGroup(1),),
    seed: int = 0,
) -> Scheduler:
    """One replica's control plane, the same for simulator and engine."""
    clock = _Clock()
    env = PolicyEnv(clock.now, pool.num_blocks, pool.block_size_tokens, seed)
    eviction, allocation = factories.eviction(env), factories.allocation(env)
    policies = Policies(
        factories.preemption(env),
        factories.batching(env),
        factories.queue(env),
        factories.admission(env),
        (eviction, allocation),
    )
    blocks = BlockPool(pool.num_blocks, eviction, log, HashIndex(), FreeOrder(pool.free_order), pool.first_block_id)
    tables = BlockTables(
        blocks,
        eviction,
        allocation,
        groups,
        pool.block_size_tokens,
        log,
        HostPool(pool.host_blocks),
        prefix_caching,
        config.max_batch_tokens,
    )
    scheduler = clock.scheduler = Scheduler(config, tables, policies, log, recorder)
    return scheduler
