"""From a resolved configuration to the objects of a run: trace, policies, pool, scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from core.build import PolicyFactories, PoolConfig, build_scheduler
from core.decision_log import DecisionLog, NoLog
from core.errors import InputError
from core.hardware import Hardware
from core.interfaces import Policy
from core.kv_group import KVGroup
from core.model_shape import ModelShape
from core.recorder import Recorder
from core.scheduler import Scheduler, SchedulerConfig
from traces.reading import read_trace
from traces.replay import Arrivals, ReplayConfig, TraceSource
from traces.samples import sample_path
from traces.schema import Trace
from traces.transforms import length_scale, limit, rate_scale

POLICY_GROUPS = ("eviction", "allocation", "preemption", "batching", "queue", "admission")
DECISIONS = ("full", "digest", "off")


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
    model: ModelShape
    hardware: Hardware
    seed: int

    def new_log(self) -> DecisionLog:
        return NoLog() if self.config["decisions"] == "off" else DecisionLog()

    def build(self, log: DecisionLog) -> Scheduler:
        return build_scheduler(
            self.scheduler, self.pool, self.policies, log, Recorder(), self.prefix_caching, self.groups, self.seed
        )

    def with_recorded_outputs(self) -> Experiment:
        """The same, where requests produce the very outputs that the trace recorded."""
        return replace(self, replay=replace(self.replay, outputs_as_recorded=True))

    def spanning(self) -> Experiment:
        """The same without single steps: as the simulator runs it."""
        return replace(self, scheduler=replace(self.scheduler, single_steps=False))

    def source(self, num_output_tokens: dict[int, int] | None = None) -> TraceSource:
        return TraceSource(self.trace, self.replay, num_output_tokens)


def load_experiment(
    config: DictConfig,
    *,
    default_num_blocks: int,
    default_max_model_len: int | None,
    single_steps: bool,
    outputs_as_recorded: bool = True,
    policies: Mapping[str, type[Policy] | partial[Any]] | None = None,
    trace: Trace | None = None,
) -> Experiment:
    """Reads the trace and binds the policies. `policies` and `trace`, where given, replace those of the configuration.

    Raises InputError for values that cannot be.
    """
    resolved = OmegaConf.to_container(config, resolve=True)
    assert isinstance(resolved, dict)
    _check_values(config)
    chosen: dict[str, Any] = {
        group: (policies or {}).get(group) or bind_policy(config[group], group) for group in POLICY_GROUPS
    }
    model = instantiate_one(config.model, "model")
    max_model_len = _limit(config.scheduler.max_model_len, "scheduler.max_model_len", default_max_model_len)
    return Experiment(
        config={str(key): value for key, value in resolved.items()},
        trace=trace if trace is not None else load_trace(config.trace),
        replay=ReplayConfig(
            config.pool.block_size_tokens,
            Arrivals(config.trace.arrivals),
            config.trace.concurrency,
            max_model_len,
            outputs_as_recorded,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=config.scheduler.max_num_seqs,
            max_batch_tokens=config.scheduler.max_batch_tokens,
            chunked_prefill=config.scheduler.chunked_prefill,
            long_prefill_threshold_tokens=config.scheduler.long_prefill_threshold_tokens,
            max_model_len=max_model_len,
            keep_cancelled_registrations=config.scheduler.keep_cancelled_registrations,
            single_steps=single_steps,
        ),
        pool=PoolConfig(
            _limit(config.pool.num_blocks, "pool.num_blocks", default_num_blocks),
            config.pool.block_size_tokens,
            config.pool.host_blocks,
            config.pool.free_order,
            config.pool.first_block_id,
        ),
        policies=PolicyFactories(**chosen),
        prefix_caching=config.scheduler.prefix_caching,
        groups=tuple(model.kv_groups()),
        model=model,
        hardware=instantiate_one(config.hardware, "hardware"),
        seed=config.seed,
    )


def _check_values(config: DictConfig) -> None:
    positive = {
        "pool.block_size_tokens": config.pool.block_size_tokens,
        "scheduler.max_num_seqs": config.scheduler.max_num_seqs,
        "scheduler.max_batch_tokens": config.scheduler.max_batch_tokens,
        "trace.concurrency": config.trace.concurrency,
    }
    for key, value in positive.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{key}={value}: expected a whole number, at least 1")
    choices = {
        "decisions": (config.decisions, DECISIONS),
        "pool.free_order": (config.pool.free_order, ("unhashed_first", "append_all")),
        "trace.on_error": (config.trace.on_error, ("fail", "skip")),
        "trace.arrivals": (config.trace.arrivals, tuple(arrivals.value for arrivals in Arrivals)),
    }
    for key, (value, allowed) in choices.items():
        if value not in allowed:
            raise InputError(f"{key}={value}: expected one of {', '.join(allowed)}")
    if config.pool.leaf_first:
        raise InputError("pool.leaf_first=true: eviction from the leaves only is not built yet; expected false")


def _limit(value: Any, key: str, default: int | None) -> int | None:
    """A whole number, `auto` (the default of the world it runs in) or `unbounded`."""
    if value == "auto":
        return default
    if value == "unbounded":
        return None
    if not isinstance(value, int) or value < 1:
        raise InputError(f"{key}={value}: expected a whole number of at least 1, auto or unbounded")
    return value


def load_trace(config: DictConfig) -> Trace:
    """Reads and transforms the configured trace: limit first, then rate and lengths."""
    if not config.sample and not config.path:
        raise InputError("trace.path is missing: trace=file needs trace.path=FILE")
    path = sample_path(config.sample) if config.sample else Path(config.path)
    trace = read_trace(path, config.format, config.on_error)
    if config.limit is not None:
        trace = limit(trace, config.limit)
    if config.rate_scale != 1:
        trace = rate_scale(trace, config.rate_scale)
    if config.length_scale != 1:
        trace = length_scale(trace, config.length_scale)
    if trace.num_requests == 0:
        raise InputError(f"{path}: no request is left to replay ({sum(trace.num_dropped.values())} rows were dropped)")
    return trace


def bind_policy(config: DictConfig, group: str) -> partial[Any]:
    """The class with its parameters; Hydra must not see the environment, which it would turn into a DictConfig."""
    policy: partial[Any] = instantiate_one(config, group, _partial_=True)
    return policy


def instantiate_one(config: DictConfig, group: str, **extra: Any) -> Any:
    """Hydra's `instantiate`, its errors told in one line."""
    try:
        return instantiate(config, **extra)
    except InstantiationException as error:
        cause = error.__cause__ if error.__cause__ is not None else error
        if isinstance(cause, InputError):
            raise cause from None
        reason = [line.strip() for line in str(cause).splitlines() if line.strip()][-1]
        raise InputError(f"{group}._target_={config.get('_target_')}: {reason}") from None
