"""One run in the simulator, from configuration to run folder."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from core.errors import InputError
from core.hardware import Hardware
from core.interfaces import Policy
from core.model_shape import ModelShape
from kvtwin.experiment import Experiment, instantiate_one, load_experiment
from kvtwin.memory_plan import SizingOptions, group_block_bytes, pool_bytes
from kvtwin.store import Run, claim_run_folder, write_run
from kvtwin.summary import Cost, RunRecords, collect_records
from sim.cost_model import CostModel
from sim.linear_cost import LinearCost
from sim.simulation import run_simulation
from traces.schema import Trace


def load_simulation(
    config: DictConfig, policies: Mapping[str, type[Policy] | partial[Any]] | None = None, trace: Trace | None = None
) -> Experiment:
    """The simulator's experiment; `pool.num_blocks=auto` is what the device has left beside the model."""
    num_blocks = _blocks_that_fit(config) if config.pool.num_blocks == "auto" else 0
    return load_experiment(
        config,
        default_num_blocks=num_blocks,
        default_max_model_len=None,
        single_steps=not config.fast_forward,
        policies=policies,
        trace=trace,
    )


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
    if OmegaConf.is_missing(config.cost, "path"):
        raise InputError("cost.path is missing: cost=calibrated needs cost.path=FILE, as `kvtwin calibrate` wrote it")
    cost: CostModel = instantiate_one(config.cost, "cost")
    return cost


def load_calibrated(path: str) -> LinearCost:
    """The linear model in a hardware file that `kvtwin calibrate` wrote."""
    try:
        fitted = OmegaConf.to_container(OmegaConf.load(path))
    except OSError as error:
        raise InputError(f"cost.path={path}: {error.strerror}; expected a file that `kvtwin calibrate` wrote") from None
    if not isinstance(fitted, dict) or "cost" not in fitted:
        raise InputError(f"cost.path={path}: has no key `cost`; expected a file that `kvtwin calibrate` wrote")
    return LinearCost(**{str(key): value for key, value in fitted["cost"].items()})


def simulate_records(experiment: Experiment, cost: CostModel) -> RunRecords:
    """Runs the simulation and gathers what it leaves behind. Raises InputError if no request of the trace can run."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    scheduler = experiment.build(experiment.new_log())
    run_simulation(experiment.source(), scheduler, cost)
    spent = Cost(time.perf_counter() - wall_s, time.process_time() - cpu_s)
    check_any_ran(experiment, scheduler.recorder.done)
    return collect_records(experiment, scheduler, "sim", spent)


def check_any_ran(experiment: Experiment, done: list[Any]) -> None:
    """A run in which every request was rejected is a mistake in the configuration, not a result."""
    reasons = [request.reject_reason for request in done]
    if len(reasons) == experiment.trace.num_requests and all(reasons):
        raise InputError(
            f"none of the {len(reasons)} requests can run: the first {reasons[0]}; enlarge the pool or scale the trace"
        )


def simulate_config(config: DictConfig) -> Run:
    """`kvtwin sim`: runs and writes the run folder."""
    experiment = load_simulation(config)
    records = simulate_records(experiment, load_cost(config))
    return store(config, records)


def store(config: DictConfig, records: RunRecords) -> Run:
    folder = run_folder(config, records.summary["config"])
    return write_run(
        folder,
        records.summary,
        requests=records.requests,
        steps=records.steps,
        gaps=records.gaps,
        files=records.files,
    )


def run_folder(config: DictConfig, resolved: Mapping[str, Any]) -> Path:
    if config.out is not None:
        return Path(config.out)
    return claim_run_folder(Path("runs"), config.name, json.loads(json.dumps(resolved)))
