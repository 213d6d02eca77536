"""From a resolved configuration to the objects of a run: trace, policies, pool, scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from core.build import PolicyFactories, PoolConfig, PrefixIndex, build_scheduler
from core.condenser import Condenser
from core.decision_log import DecisionLog, NoLog
from core.digest_log import DigestLog
from core.errors import InputError
from core.foresight import Foresight
from core.hardware import Hardware
from core.kv_group import KVGroup
from core.model_shape import ModelShape
from core.recorder import Recorder
from core.scheduler import Scheduler, SchedulerConfig
from kvtwin.binding import PolicyFactory, bind_policy, checked_policy, instantiate_one, policy_bases
from kvtwin.foreseeing import foresight_of, is_clairvoyant
from kvtwin.pool_layout import pool_layout
from kvtwin.rare_collection import rare_collection
from kvtwin.tokenizing import read_with_tokenizer
from traces.replay import Arrivals, Names, ReplayConfig, TraceSource
from traces.samples import sample_path
from traces.schema import Trace
from traces.transforms import length_scale, limit, rate_scale

_SEEDS_APART = 1_000_003  # between replicas: far from what a user would call two seeds


@dataclass(frozen=True)
class Fleet:
    """How many replicas there are, who tells which serves a request, and over how many processes (None: decide then).

    `shards_on`: whose processes these are, ours or Ray's. `routing(env)` makes the policy; None where the verb knows no
    fleets.
    """

    num_replicas: int = 1
    num_shards: int | None = None
    shards_on: str = "processes"
    routing: partial[Any] | None = None


_LOGS: dict[str, type[DecisionLog]] = {"full": DecisionLog, "digest": DigestLog, "off": NoLog}


@dataclass(frozen=True)
class Experiment:
    """One run's ingredients, the same for simulator and engine; `build` makes its control plane anew."""

    config: Mapping[str, Any]  # resolved, as it goes into the summary
    trace: Trace
    replay: ReplayConfig
    scheduler: SchedulerConfig
    pool: PoolConfig
    policies: PolicyFactories
    prefix_caching: bool
    groups: tuple[KVGroup, ...]
    block_layers: int  # whose KV one block of the pool holds
    model: ModelShape
    hardware: Hardware
    seed: int
    fleet: Fleet = Fleet()

    @property
    def keeps_steps(self) -> bool:
        """Whether the run keeps a row a step; the engine's always does."""
        return bool(self.config.get("steps", True))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        token_bytes = self.model.kv_bytes_per_token() // self.model.num_kv_layers * self.block_layers
        return self.pool.block_size_tokens * token_bytes

    def new_log(self) -> DecisionLog:
        return _LOGS[self.config["decisions"]]()

    def build(self, log: DecisionLog, replica: int = 0) -> Scheduler:
        """The control plane of one replica. Each draws other random numbers; the first those of a replica alone."""
        return self._build(log, replica, by_ids=False)

    def build_for_simulation(self, log: DecisionLog, replica: int = 0) -> Scheduler:
        """As `build`, with the same decisions, where nobody looks into its block tables."""
        has_samples = self.trace.num_samples is not None or self.replay.num_samples is not None
        by_ids = not (self.scheduler.single_steps or has_samples or self.replay.beam_width is not None)
        return self._build(log, replica, by_ids)

    def _build(self, log: DecisionLog, replica: int, by_ids: bool) -> Scheduler:
        return build_scheduler(
            self.scheduler,
            self.pool,
            self.policies,
            log,
            Recorder(None if self.keeps_steps else Condenser()),
            self.prefix_caching,
            self.groups,
            self.seed + replica * _SEEDS_APART,
            self._foresight(),
            self.config.get("attribution", True),
            by_ids,
        )

    def _foresight(self) -> Foresight | None:
        if not is_clairvoyant(self.policies.eviction):
            return None
        return foresight_of(self.trace, self.replay, len(self.groups))

    def with_recorded_outputs(self) -> Experiment:
        """The same, where requests produce the very outputs that the trace recorded."""
        return replace(self, replay=replace(self.replay, outputs_as_recorded=True))

    def spanning(self) -> Experiment:
        """The same without single steps: as the simulator runs it."""
        return replace(self, scheduler=replace(self.scheduler, single_steps=False))

    def source(self, num_output_tokens: dict[int, int] | None = None, names: Names | None = None) -> TraceSource:
        """`names`: where the trace is a part of another's."""
        return TraceSource(self.trace, self.replay, num_output_tokens, names)


def load_experiment(
    config: DictConfig,
    *,
    default_num_blocks: int,
    default_max_model_len: int | None,
    single_steps: bool,
    outputs_as_recorded: bool = True,
    policies: Mapping[str, PolicyFactory] | None = None,
    trace: Trace | None = None,
) -> Experiment:
    """Reads the trace and binds the policies. `policies` and `trace`, where given, replace those of the configuration.

    The configuration's values are taken to have passed `check_settings`. Raises InputError for what cannot be.
    """
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    if config.pool.prefix_index == PrefixIndex.RADIX.value and config.preemption.get("mode") == "swap":
        raise InputError("preemption.mode=swap: pool.prefix_index=radix cannot swap; expected recompute")
    if config.trace.num_samples is not None and config.trace.beam_width is not None:
        raise InputError(
            "trace.num_samples, trace.beam_width: the samples of a search are its beams; expected one of both"
        )
    given = policies or {}
    chosen = {
        group: checked_policy(given[group], group, base) if group in given else bind_policy(config[group], group, base)
        for group, base in policy_bases(PrefixIndex(config.pool.prefix_index)).items()
    }
    model = instantiate_one(config.model, "model")
    layout = pool_layout(model, chosen["allocation"], _limit(config.pool.num_blocks, default_num_blocks))
    max_model_len = _limit(config.scheduler.max_model_len, default_max_model_len)
    return Experiment(
        config={str(key): value for key, value in resolved.items()},
        trace=transformed(trace if trace is not None else load_trace(config), config.trace),
        replay=ReplayConfig(
            config.pool.block_size_tokens,
            Arrivals(config.trace.arrivals),
            config.trace.concurrency,
            max_model_len,
            config.trace.max_new_tokens,
            outputs_as_recorded,
            config.trace.num_samples,
            config.trace.beam_width,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_batch_tokens=config.scheduler.max_batch_tokens,
            chunked_prefill=config.scheduler.chunked_prefill,
            long_prefill_threshold_tokens=config.scheduler.long_prefill_threshold_tokens,
            max_model_len=max_model_len,
            keep_cancelled_registrations=config.scheduler.keep_cancelled_registrations,
            publication=config.scheduler.publication,
            admit_after_preemption=config.scheduler.admit_after_preemption,
            own_preemption_ends_step=config.scheduler.own_preemption_ends_step,
            async_scheduling=config.scheduler.async_scheduling,
            single_steps=single_steps,
        ),
        pool=PoolConfig(
            layout.num_blocks,
            config.pool.block_size_tokens,
            config.pool.host_blocks,
            config.pool.free_order,
            config.pool.first_block_id,
            config.pool.leaf_first,
            config.pool.prefix_index,
            config.pool.split_created,
        ),
        policies=PolicyFactories(**chosen),
        prefix_caching=config.scheduler.prefix_caching,
        groups=layout.groups,
        block_layers=layout.block_layers,
        model=model,
        hardware=instantiate_one(config.hardware, "hardware"),
        seed=config.seed,
        fleet=_fleet(config, given),
    )


def _fleet(config: DictConfig, given: Mapping[str, PolicyFactory]) -> Fleet:
    if "routing" not in config:
        return Fleet(config.cluster.num_replicas) if "cluster" in config else Fleet()
    chosen = given.get("routing")
    routing = bind_policy(config.routing, "routing") if chosen is None else checked_policy(chosen, "routing")
    shards = config.cluster.shards
    num_shards = None if shards == "auto" else shards
    return Fleet(config.cluster.num_replicas, num_shards, config.cluster.shards_on, routing)


def _limit(value: int | str, default: int | None) -> int | None:
    """A whole number, `auto` (the default of the world it runs in) or `unbounded`."""
    if isinstance(value, int):
        return value
    return default if value == "auto" else None


@rare_collection()  # a trace is large, and nothing in it goes in circles
def load_trace(config: DictConfig) -> Trace:
    """The configured trace as it lies in its file, or as its recipe makes it: another one for every `seed`."""
    source = config.trace
    if source.path and (source.sample or source.get("recipe")):
        raise InputError(f"trace.path={source.path}: trace={source.name} reads no file; expected trace=file beside it")
    if source.get("recipe"):
        from traces.generate import generate  # what few runs need is not loaded for all
        from traces.recipe import load_recipe

        document, path = load_recipe(source.recipe)
        return generate(document, source.num_requests, _trace_seed(config, document), path.name)
    if not source.sample and not source.path:
        raise InputError("trace.path is missing: trace=file needs trace.path=FILE")
    path = sample_path(source.sample) if source.sample else Path(source.path).expanduser()
    return read_with_tokenizer(path, source.format, source.on_error, source.hash_block_tokens, source.tokenizer)


def _trace_seed(config: DictConfig, recipe: Mapping[str, Any]) -> int | None:
    """`trace.seed` where it is set; else the recipe's own and `seed` added to it. None: the recipe's, as it stands."""
    own = recipe.get("seed", 0)
    is_shifted = config.trace.seed is None and config.seed and isinstance(own, int)  # what else it is, is told later
    seed: int | None = own + config.seed if is_shifted else config.trace.seed
    return seed


def transformed(trace: Trace, config: DictConfig) -> Trace:
    """The trace as the configuration wants it: limit first, then rate and lengths."""
    if config.limit is not None:
        trace = limit(trace, config.limit)
    if config.rate_scale != 1:
        trace = rate_scale(trace, config.rate_scale)
    if config.length_scale != 1:
        trace = length_scale(trace, config.length_scale)
    return trace
