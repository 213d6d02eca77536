"""Wires pool, tables, policies and scheduler of one replica together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.async_scheduler import AsyncScheduler
from core.block_pool import BlockPool, FreeOrder
from core.block_tables import BlockTables
from core.decision_log import DecisionLog
from core.errors import InputError
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
from core.leaf_first import LeafFirst
from core.linked_index import LinkedIndex
from core.prefix_index import HashIndex
from core.recorder import Recorder
from core.scheduler import Policies, Scheduler, SchedulerConfig
from core.swap import HostPool


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`num_blocks` counts usable blocks (None: unbounded); ids start at `first_block_id`.

    `leaf_first`: only blocks without resident children are evicted.
    """

    num_blocks: int | None
    block_size_tokens: int = 16
    host_blocks: int = 0
    free_order: str = "unhashed_first"
    first_block_id: int = 0
    leaf_first: bool = False


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
    """One replica's control plane, the same for simulator and engine.

    Raises InputError for a pool that the KV groups cannot have.
    """
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
    is_windowed = any(group.window_tokens is not None for group in groups)
    orders, index = _eviction_and_index(eviction, pool.leaf_first, prefix_caching, is_windowed)
    blocks = BlockPool(pool.num_blocks, orders, log, index, FreeOrder(pool.free_order), pool.first_block_id)
    tables = BlockTables(
        blocks,
        orders,
        allocation,
        groups,
        pool.block_size_tokens,
        log,
        HostPool(pool.host_blocks),
        prefix_caching,
        config.max_batch_tokens,
    )
    kind = AsyncScheduler if config.async_scheduling else Scheduler
    scheduler = clock.scheduler = kind(config, tables, policies, log, recorder)
    return scheduler


def _eviction_and_index(
    eviction: EvictionPolicy, leaf_first: bool, prefix_caching: bool, is_windowed: bool
) -> tuple[EvictionPolicy, HashIndex]:
    """The policy, constrained to leaves where asked for, and an index that knows about leaves or orphans if need be.

    Behind a sliding window there are neither: a text's beginning is given up first, and its end still hits.
    """
    if leaf_first and is_windowed:
        raise InputError(
            "pool.leaf_first=true: with sliding windows a sequence gives up its beginning first; expected false, or a"
            " model of full attention"
        )
    if leaf_first:
        index = LinkedIndex()
        return LeafFirst(eviction, index), index
    counts_orphans = prefix_caching and not is_windowed and not eviction.is_prefix_closed
    return eviction, LinkedIndex() if counts_orphans else HashIndex()
