"""Wires pool, tables, policies and scheduler of one replica together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from core.async_scheduler import AsyncScheduler
from core.batch_eviction import has_batches
from core.batch_index import BatchIndex
from core.batch_pool import BatchPool
from core.block_pool import BlockPool, FreeOrder
from core.block_tables import BlockTables
from core.contiguous import ContiguousTables
from core.decision_log import DecisionLog
from core.errors import InputError
from core.foresight import Foresight
from core.id_tables import IdTables
from core.interfaces import (
    AdmissionPolicy,
    AllocationPolicy,
    BatchPolicy,
    ContiguousAllocation,
    EvictionPolicy,
    LeafRanking,
    Policy,
    PolicyEnv,
    PreemptionPolicy,
    QueuePolicy,
)
from core.kv_group import KVGroup
from core.large_pages import Carving, LargePageAllocation
from core.lcm_tables import LcmPool, LcmTables
from core.leaf_first import LeafFirst
from core.linked_index import LinkedIndex
from core.pool import UNBOUNDED
from core.prefix_index import HashIndex
from core.radix_tables import RadixTables
from core.radix_tree import RadixTree, SplitCreated
from core.recorder import Recorder
from core.run_pool import RunPool, keeps_order_of_release
from core.scheduler import Policies, Scheduler, SchedulerConfig
from core.swap import HostPool
from core.whole_leaves import WholeLeaves


class PrefixIndex(Enum):
    """How cached content is kept and found. Each form has its own kind of eviction policy."""

    HASH = "hash"  # vLLM: block by block, published when scheduled; `EvictionPolicy`
    RADIX = "radix"  # SGLang: a tree of runs, published when computed, evicted by whole leaves; `LeafRanking`


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`num_blocks` counts usable blocks (None: unbounded); ids start at `first_block_id`.

    `leaf_first`: of the hash index, only blocks without resident children are evicted. `split_created` is the radix
    tree's (`core.radix_tree.SplitCreated`).
    """

    num_blocks: int | None
    block_size_tokens: int = 16
    host_blocks: int = 0
    free_order: str = "unhashed_first"
    first_block_id: int = 0
    leaf_first: bool = False
    prefix_index: str = "hash"
    split_created: str = "inherited"


@dataclass(frozen=True, slots=True)
class PolicyFactories:
    """Each builds one policy from its environment: a class with its parameters bound."""

    eviction: Callable[[PolicyEnv], EvictionPolicy | LeafRanking]
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
    foresight: Foresight | None = None,
    attribution: bool = True,
    by_ids: bool = False,
) -> Scheduler:
    """One replica's control plane, the same for simulator and engine.

    `foresight`: where a policy knows the future. `attribution`: whether evictions are charged for what they cost;
    models of several KV groups or with sliding windows go without. `by_ids`: the tables are read by nobody but the
    control plane, and no request has several samples; where the policies allow it, blocks are then kept as runs.

    Raises InputError for a pool that the KV groups cannot have.
    """
    clock = _Clock()
    env = PolicyEnv(clock.now, pool.num_blocks, pool.block_size_tokens, seed, foresight)
    eviction, allocation = factories.eviction(env), factories.allocation(env)
    policies = Policies(
        factories.preemption(env),
        factories.batching(env),
        factories.queue(env),
        factories.admission(env),
        (eviction, allocation),
    )
    if prefix_caching and not allocation.shares_blocks:
        raise InputError(
            f"scheduler.prefix_caching=true: under allocation {type(allocation).__name__} no two sequences share a "
            "block; expected false"
        )
    form = PrefixIndex(pool.prefix_index)
    if form is PrefixIndex.RADIX:
        config = _for_a_tree(config)
    make_tables = _maker_of_tables(allocation, form)
    if by_ids and not policies.preemption.reads_tables and _suits_ids(config, pool, allocation, groups):
        make_tables = _maker_by_ids(eviction, prefix_caching, make_tables)
    max_unsettled_tokens = _max_unsettled_tokens(config, policies.batching)
    tables = make_tables(pool, eviction, allocation, log, groups, prefix_caching, max_unsettled_tokens)
    if attribution and prefix_caching and len(groups) == 1 and groups[0].window_tokens is None:
        tables.pool.attribute_evictions(clock.now, pool.block_size_tokens)
    kind = AsyncScheduler if config.async_scheduling else Scheduler
    scheduler = clock.scheduler = kind(config, tables, policies, log, recorder)
    scheduler.foresight = foresight
    return scheduler


def _max_unsettled_tokens(config: SchedulerConfig, batching: BatchPolicy) -> int:
    """Tokens of the steps under way, of which nothing has left a window yet."""
    if batching.exceeds_max_batch_tokens:
        return UNBOUNDED
    return config.max_batch_tokens * (2 if config.async_scheduling else 1)


def _suits_ids(
    config: SchedulerConfig, pool: PoolConfig, allocation: AllocationPolicy, groups: tuple[KVGroup, ...]
) -> bool:
    """Whether `IdTables` decides as `BlockTables` would, under an eviction policy that has a form for it."""
    return (
        allocation.is_on_demand
        and not isinstance(allocation, LargePageAllocation)
        and len(groups) == 1
        and groups[0].window_tokens is None
        and pool.num_blocks is not None
        and pool.prefix_index == PrefixIndex.HASH.value
        and pool.free_order == FreeOrder.UNHASHED_FIRST.value
        and not pool.leaf_first
        and not pool.host_blocks
        and not config.async_scheduling
    )


def _maker_by_ids(
    eviction: Policy, prefix_caching: bool, otherwise: Callable[..., BlockTables]
) -> Callable[..., BlockTables]:
    if not isinstance(eviction, EvictionPolicy):
        return otherwise
    if keeps_order_of_release(eviction) or not prefix_caching:
        return _run_tables  # without caching nothing is ever evicted
    return _batch_tables if has_batches(eviction) else otherwise


def _batch_tables(
    pool: PoolConfig,
    eviction: Policy,
    allocation: AllocationPolicy,
    log: DecisionLog,
    groups: tuple[KVGroup, ...],
    prefix_caching: bool,
    max_batch_tokens: int,
) -> BlockTables:
    assert isinstance(eviction, EvictionPolicy)
    assert pool.num_blocks is not None
    index = BatchIndex(pool.first_block_id + pool.num_blocks)
    batches = eviction.in_batches(index.contents)
    if batches is None:
        return _hash_tables(pool, eviction, allocation, log, groups, prefix_caching, max_batch_tokens)
    ids = BatchPool(pool.num_blocks, batches, index, log, pool.first_block_id)
    return IdTables(ids, eviction, allocation, groups, pool.block_size_tokens, log, prefix_caching, max_batch_tokens)


def _run_tables(
    pool: PoolConfig,
    eviction: Policy,
    allocation: AllocationPolicy,
    log: DecisionLog,
    groups: tuple[KVGroup, ...],
    prefix_caching: bool,
    max_batch_tokens: int,
) -> IdTables:
    assert isinstance(eviction, EvictionPolicy)
    assert pool.num_blocks is not None
    runs = RunPool(pool.num_blocks, log, pool.first_block_id)
    return IdTables(runs, eviction, allocation, groups, pool.block_size_tokens, log, prefix_caching, max_batch_tokens)


def _hash_tables(
    pool: PoolConfig,
    eviction: Policy,
    allocation: AllocationPolicy,
    log: DecisionLog,
    groups: tuple[KVGroup, ...],
    prefix_caching: bool,
    max_batch_tokens: int,
) -> BlockTables:
    if not isinstance(eviction, EvictionPolicy):
        raise InputError(
            f"eviction: {type(eviction).__name__} ranks leaves of a radix tree; it goes with pool.prefix_index=radix"
        )
    is_windowed = any(group.window_tokens is not None for group in groups)
    order, index = _eviction_and_index(eviction, pool.leaf_first, prefix_caching, is_windowed)
    blocks = BlockPool(pool.num_blocks, order, log, index, FreeOrder(pool.free_order), pool.first_block_id)
    host = HostPool(pool.host_blocks)
    return BlockTables(
        blocks, order, allocation, groups, pool.block_size_tokens, log, host, prefix_caching, max_batch_tokens
    )


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
    if leaf_first or (eviction.leaf_first and not is_windowed):
        index = LinkedIndex()
        return LeafFirst(eviction, index), index
    counts_orphans = prefix_caching and not is_windowed and not eviction.is_prefix_closed
    return eviction, LinkedIndex() if counts_orphans else HashIndex()


def _for_a_tree(config: SchedulerConfig) -> SchedulerConfig:
    """Content is published once it is computed. Raises InputError for what would publish otherwise."""
    if config.async_scheduling:
        raise InputError("scheduler.async_scheduling=true: pool.prefix_index=radix has no async form; expected false")
    if config.publication == "step_end":
        raise InputError(
            "scheduler.publication=step_end: pool.prefix_index=radix publishes what is computed; expected the default"
        )
    return replace(config, publication="computed")


def _radix_tables(
    pool: PoolConfig,
    ranking: Policy,
    allocation: AllocationPolicy,
    log: DecisionLog,
    groups: tuple[KVGroup, ...],
    prefix_caching: bool,
    max_batch_tokens: int,
) -> RadixTables:
    if not isinstance(ranking, LeafRanking):
        raise InputError(
            f"eviction: {type(ranking).__name__} orders single blocks, pool.prefix_index=radix evicts whole leaves; "
            "expected a LeafRanking such as eviction=radix/lru"
        )
    if pool.free_order != FreeOrder.UNHASHED_FIRST.value:
        raise InputError(f"pool.free_order={pool.free_order}: with pool.prefix_index=radix, expected unhashed_first")
    if pool.leaf_first:
        raise InputError("pool.leaf_first=true: pool.prefix_index=radix evicts leaves only by itself; expected false")
    if pool.host_blocks:
        raise InputError(f"pool.host_blocks={pool.host_blocks}: pool.prefix_index=radix cannot swap; expected 0")
    leaves = WholeLeaves(ranking, RadixTree(ranking.rank, SplitCreated(pool.split_created)))
    blocks = BlockPool(pool.num_blocks, leaves, log, HashIndex(), first_block_id=pool.first_block_id)
    return RadixTables(
        blocks, leaves, ranking, allocation, groups, pool.block_size_tokens, log, prefix_caching, max_batch_tokens
    )


def _contiguous_tables(
    pool: PoolConfig,
    eviction: Policy,
    allocation: AllocationPolicy,
    log: DecisionLog,
    groups: tuple[KVGroup, ...],
    prefix_caching: bool,
    max_batch_tokens: int,
) -> ContiguousTables:
    """Refuses what caches blocks or takes them one at a time: the tree, swapping, windows, groups of layers."""
    assert isinstance(allocation, ContiguousAllocation)
    name = type(allocation).__name__
    eviction = _of_a_pool_without_tree_or_host(eviction, pool, name)
    if pool.num_blocks is None:
        raise InputError(f"pool.num_blocks=unbounded: allocation {name} needs a pool that ends; expected a number")
    if len(groups) > 1 or groups[0].window_tokens is not None:
        raise InputError(f"model: allocation {name} gives a sequence one run of blocks; expected full attention only")
    return ContiguousTables(
        pool.num_blocks, pool.first_block_id, eviction, allocation, pool.block_size_tokens, log, max_batch_tokens
    )


def _of_a_pool_without_tree_or_host(eviction: Policy, pool: PoolConfig, allocation_name: str) -> EvictionPolicy:
    """The eviction policy of an allocation that goes with neither a radix tree nor swapping."""
    if not isinstance(eviction, EvictionPolicy):
        raise InputError(
            f"pool.prefix_index={pool.prefix_index}: allocation {allocation_name} has no form for it; expected hash"
        )
    if pool.host_blocks:
        raise InputError(f"pool.host_blocks={pool.host_blocks}: allocation {allocation_name} cannot swap; expected 0")
    return eviction


def _lcm_tables(
    pool: PoolConfig,
    eviction: Policy,
    allocation: AllocationPolicy,
    log: DecisionLog,
    groups: tuple[KVGroup, ...],
    prefix_caching: bool,
    max_batch_tokens: int,
) -> LcmTables:
    """Refuses whole leaves, copies between pools, an order of its own of what has no content, and too small a pool."""
    assert isinstance(allocation, LargePageAllocation)
    name = type(allocation).__name__
    eviction = _of_a_pool_without_tree_or_host(eviction, pool, name)
    if pool.free_order != FreeOrder.UNHASHED_FIRST.value:
        raise InputError(f"pool.free_order={pool.free_order}: under allocation {name}, expected unhashed_first")
    carving = Carving.of(groups)
    if pool.num_blocks is not None and pool.num_blocks < carving.large:
        raise InputError(
            f"pool.num_blocks: {pool.num_blocks} blocks of one layer, a large page of allocation {name} has"
            f" {carving.large}; expected more"
        )
    is_windowed = any(group.window_tokens is not None for group in groups)
    order, index = _eviction_and_index(eviction, pool.leaf_first, prefix_caching, is_windowed)
    small = LcmPool(pool.num_blocks, carving, order, log, index, pool.first_block_id)
    return LcmTables(small, order, allocation, groups, pool.block_size_tokens, log, prefix_caching, max_batch_tokens)


_MAKE_TABLES = {PrefixIndex.HASH: _hash_tables, PrefixIndex.RADIX: _radix_tables}


def _maker_of_tables(allocation: AllocationPolicy, form: PrefixIndex) -> Callable[..., BlockTables]:
    if isinstance(allocation, ContiguousAllocation):
        return _contiguous_tables
    return _lcm_tables if isinstance(allocation, LargePageAllocation) else _MAKE_TABLES[form]
