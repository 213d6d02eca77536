"""One run in the simulator, from configuration to records."""

from __future__ import annotations

import inspect
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from core.errors import InputError
from core.hardware import Hardware
from core.model_shape import ModelShape
from engine.interrupt import DeferredInterrupt
from kvtwin.binding import PolicyFactory, instantiate_one
from kvtwin.experiment import Experiment, load_experiment
from kvtwin.fleet import Watch, check_fleet, simulate_alone, simulate_fleet
from kvtwin.memory_plan import SizingOptions, group_block_bytes, pool_bytes
from kvtwin.naming import near_or_all
from kvtwin.progress import progress_bar
from kvtwin.replica_records import ReplicaRecords
from kvtwin.summary import Cost, RunRecords, collect_records, cpu_time_s
from sim.cost_model import CostModel
from sim.linear_cost import LinearCost
from traces.schema import Trace

_CALIBRATED = f"{__name__}.load_calibrated"  # as conf/cost/calibrated.yaml names it
_EXPECTED = "expected a file that `kvtwin calibrate` wrote"


def load_simulation(
    config: DictConfig, policies: Mapping[str, PolicyFactory] | None = None, trace: Trace | None = None
) -> Experiment:
    """The simulator's experiment; `pool.num_blocks=auto` is what the device has left beside the model."""
    num_blocks = _blocks_that_fit(config) if config.pool.num_blocks == "auto" else 0
    experiment = load_experiment(
        config,
        default_num_blocks=num_blocks,
        default_max_model_len=None,
        single_steps=not config.fast_forward,
        policies=policies,
        trace=trace,
    )
    check_fleet(experiment)
    return experiment


def _blocks_that_fit(config: DictConfig) -> int:
    model: ModelShape = instantiate_one(config.model, "model")
    hardware: Hardware = instantiate_one(config.hardware, "hardware")
    options = SizingOptions(
        context_tokens=config.pool.block_size_tokens, block_size_tokens=config.pool.block_size_tokens
    )
    num_blocks = pool_bytes(model, hardware, options) // group_block_bytes(model, options) - 1
    if num_blocks < 1:
        raise InputError(
            f"pool.num_blocks=auto: {model.name} leaves no memory for KV on {hardware.name}; set pool.num_blocks or "
            f"take a larger device (`kvtwin size` shows the arithmetic)"
        )
    return num_blocks


def load_cost(config: DictConfig) -> CostModel:
    """The configured cost model; its YAML hands it the model, device and block size that it needs."""
    cost = instantiate_one(config.cost, "cost")
    if not isinstance(cost, CostModel):
        target = config.cost.get("_target_")
        raise InputError(f"cost._target_={target}: expected a class derived from sim.cost_model.CostModel")
    return cost


def load_calibrated(path: str) -> LinearCost:
    """The linear model in a hardware file that `kvtwin calibrate` wrote."""
    coefficients = {str(key): value for key, value in _read_fitted(path)["cost"].items()}
    known = inspect.signature(LinearCost).parameters
    for key, value in coefficients.items():
        if key not in known:
            raise InputError(f"cost.path={path}: cost.{key}: no such key{near_or_all(key, known)}")
        if isinstance(value, int | float) and value < 0:
            raise InputError(f"cost.path={path}: cost.{key}={value}: expected at least 0")
    try:
        return LinearCost(**coefficients)
    except (TypeError, ValueError) as error:
        raise InputError(f"cost.path={path}: {error}; {_EXPECTED}") from None


def other_model_text(config: DictConfig) -> str:
    """That calibrated times are another model's; empty where they are not, or the file does not say."""
    if config.cost.get("_target_") != _CALIBRATED:
        return ""
    calibrated = _read_fitted(config.cost.path).get("calibrated")
    name = calibrated.get("model") if isinstance(calibrated, dict) else None
    if name in (None, config.model.name):
        return ""
    here = config.model.name
    return f"cost.path={config.cost.path} was fitted to {name}, whose times these are; the model here is {here}"


def _read_fitted(path: str) -> dict[Any, Any]:
    try:
        fitted = OmegaConf.to_container(OmegaConf.load(Path(path).expanduser()))
    except OSError as error:
        raise InputError(f"cost.path={path}: {error.strerror}; {_EXPECTED}") from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f", line {mark.line + 1}"
        raise InputError(f"cost.path={path}{line}: not readable as YAML; {_EXPECTED}") from None
    except Exception as error:  # of OmegaConf, for YAML that is no configuration
        raise InputError(f"cost.path={path}: {str(error).splitlines()[0]}; {_EXPECTED}") from None
    if not isinstance(fitted, dict) or not isinstance(fitted.get("cost"), dict):
        raise InputError(f"cost.path={path}: has no key `cost`; {_EXPECTED}")
    return fitted


def simulate_records(experiment: Experiment, cost: CostModel) -> RunRecords:
    """Runs the simulation and gathers what it leaves behind. Ctrl-C ends it early and marks the summary as interrupted.

    Raises InputError if no request of the trace can run, or if time goes beyond what the records hold.
    """
    wall_s, cpu_s = time.perf_counter(), cpu_time_s()
    simulate = simulate_fleet if experiment.fleet.num_replicas > 1 else simulate_alone
    with progress_bar("sim", experiment.trace.num_requests) as progress, DeferredInterrupt() as interrupt:
        try:
            replicas = simulate(experiment, Watch(cost, progress, interrupt))
        except (OverflowError, struct.error) as error:
            raise InputError(
                f"virtual time went beyond 53 days, which 62 bits of picoseconds hold ({error}); expected steps that "
                "take less, or a shorter trace"
            ) from error
    spent = Cost(time.perf_counter() - wall_s, cpu_time_s() - cpu_s)
    check_any_ran(experiment, replicas)
    return collect_records(experiment, replicas, "sim", spent, interrupted=interrupt.requested)


def check_any_ran(experiment: Experiment, replicas: Sequence[ReplicaRecords]) -> None:
    """A run in which every request was rejected is a mistake in the configuration, not a result."""
    num_taken = sum(len(each.requests["request_id"]) for each in replicas)
    turned_away = [each.turned_away for each in replicas if len(each.requests["request_id"])]
    reasons = [each for each in turned_away if each is not None]
    if num_taken < experiment.trace.num_requests or len(reasons) < len(turned_away):
        return
    (row, reason), longest = min(reasons), experiment.replay.max_model_len
    num_tokens = int(experiment.trace.num_prompt_tokens[row] + experiment.trace.num_output_tokens[row])
    if longest is not None and num_tokens > longest:
        reason = f"has {num_tokens} tokens, the longest allowed (scheduler.max_model_len) is {longest}"
    raise InputError(
        f"none of the {num_taken} requests can run: the first {reason}; expected a pool, a trace and settings "
        "under which it can"
    )
