"""Validation: one trace on engine and simulator. Decisions in lockstep; times by a cost model fitted elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from core.errors import InputError
from engine.loop import run_by_turns
from kvtwin.binding import instantiate_one
from kvtwin.calibration import Fit, check_enough_steps, fit_linear
from kvtwin.comparison import COMPARISON_FILE, Lockstep, compare_runs
from kvtwin.engine_runs import EngineResult, EngineRunner, load_engine_run
from kvtwin.engine_setup import load_model
from kvtwin.hardware_file import write_hardware_file
from kvtwin.progress import Silent, progress_bar, stage
from kvtwin.replaying import check_lockstep
from kvtwin.report import write_report
from kvtwin.run_folder import run_folder
from kvtwin.settings import check_settings
from kvtwin.simulating import simulate_records
from kvtwin.store import Run, read_run, write_atomically

WARM_UP_REQUESTS = 3
STEPS_A_TURN = (2, 1)  # of the engine run, and of the calibration beside it


@dataclass(frozen=True)
class Validation:
    """What a validation found, and where it lies. `comparison` is None where Ctrl-C came before there was one."""

    folder: Path
    comparison: dict[str, Any] | None
    notices: list[str]


@dataclass
class _Evidence:
    """What the turns of a validation gather."""

    calibrations: list[EngineResult] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    lockstep: list[Lockstep] = field(default_factory=list)


def validate_config(config: DictConfig) -> Validation:
    """Runs engine and calibration by turns of a few steps, whatever slows the machine slows both; compares, reports.

    Ctrl-C ends it: what ran is kept in its folder. Raises InputError for what cannot run or tells too little.
    """
    calibration = _calibration_config(config)
    shape = instantiate_one(config.model, "model")
    stage(f"validate: loading {shape.name}")
    model = load_model(config, shape)
    calibrator = load_engine_run(calibration, model=model)
    runner = load_engine_run(config, model=model)
    notices = [notice for notice in (model.notice, runner.setup.threads_notice) if notice]
    with run_folder(runner.setup.experiment.config) as folder:
        try:
            stage(f"validate: warming up on {WARM_UP_REQUESTS} requests")
            _run(load_engine_run(_warm_up_config(calibration), model=model), "warm-up")
            evidence = _gather(config.validate.repeats, calibrator, runner, folder)
            comparison = _conclude(evidence, calibrator, runner, folder)
        except KeyboardInterrupt:
            return Validation(folder, None, notices)
        notices += _unpriced(evidence, comparison)
        if config.report:
            sim = read_run(folder / "sim")
            write_report(folder / "report.html", sim, evidence.runs, comparison, notices)
    return Validation(folder, comparison, notices)


def _gather(repeats: int, calibrator: EngineRunner, runner: EngineRunner, folder: Path) -> _Evidence:
    evidence = _Evidence()
    num_requests, num_calibrating = (each.setup.experiment.trace.num_requests for each in (runner, calibrator))
    for repeat in range(1, repeats + 1):
        beside = f"calibration ({num_calibrating:,}) in turns with it"
        stage(f"validate: engine run {repeat} of {repeats}: {num_requests:,} requests, {beside}")
        result, calibration = _run_by_turns(runner, calibrator, f"engine run {repeat}")
        if not result.interrupted:
            check_enough_steps(repeats * len(calibration.works))  # now, not after minutes of further engine runs
        evidence.runs.append(result.records.write(folder / f"engine-{repeat}"))
        if result.interrupted:
            raise KeyboardInterrupt
        evidence.calibrations.append(calibration)
        stage(f"validate: replaying its decisions in the simulator ({len(result.log):,})")
        evidence.lockstep.append(check_lockstep(evidence.runs[-1], result.log))
    return evidence


def _run_by_turns(runner: EngineRunner, calibrator: EngineRunner, label: str) -> tuple[EngineResult, EngineResult]:
    with progress_bar(label, runner.setup.experiment.trace.num_requests) as progress:
        measured, calibration = runner.start(progress), calibrator.start(Silent())
        interrupted = run_by_turns([measured.loop, calibration.loop], STEPS_A_TURN)
    return measured.finish(interrupted), calibration.finish(interrupted)


def _run(runner: EngineRunner, label: str) -> EngineResult:
    result = runner.run(label)
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def _conclude(evidence: _Evidence, calibrator: EngineRunner, runner: EngineRunner, folder: Path) -> dict[str, Any]:
    """Simulates with what the calibrations taught, and writes the comparison."""
    fit = fit_results(evidence.calibrations)
    stage(f"validate: simulating with a cost model fitted to {fit.num_steps:,} steps")
    simulated = simulate_records(runner.setup.experiment.spanning(), fit.model())
    if simulated.summary["interrupted"]:
        raise KeyboardInterrupt
    simulated.summary["calibration"] = _calibration_block(fit, calibrator)
    comparison = compare_runs(simulated.write(folder / "sim"), evidence.runs, _worst(evidence.lockstep))
    comparison["calibration"] = simulated.summary["calibration"]
    write_hardware_file(
        folder / "hardware.yaml",
        fit,
        evidence.runs[0].summary["engine"],
        runner.setup.experiment.model.name,
        calibrator.setup.experiment.trace.name,
    )
    write_atomically(folder / COMPARISON_FILE, json.dumps(comparison, indent=1, allow_nan=False).encode())
    return comparison


def fit_results(results: Sequence[EngineResult]) -> Fit:
    """One fit over the steps of several engine runs."""
    works = [work for result in results for work in result.works]
    return fit_linear(works, np.concatenate([result.durations_s for result in results]))


def _calibration_config(config: DictConfig) -> DictConfig:
    """The configuration with `validate.calibration` in place of what it names."""
    try:
        merged = OmegaConf.merge(config, config.validate.calibration)
    except OmegaConfBaseException as error:
        raise InputError(f"validate.calibration: {str(error).splitlines()[0]}") from None
    assert isinstance(merged, DictConfig)
    try:
        check_settings(merged)
    except InputError as error:  # the rest has been checked: what is wrong stands there
        raise InputError(f"validate.calibration.{error}") from None
    return merged


def _warm_up_config(calibration: DictConfig) -> DictConfig:
    """A few requests, so that no run pays for the first use of a library."""
    few = calibration.copy()
    few.trace.limit = WARM_UP_REQUESTS
    return few


def _unpriced(evidence: _Evidence, comparison: Mapping[str, Any]) -> list[str]:
    """What the simulation could not price because no calibration step did it."""
    has_seen_swaps = any(work.num_swapped_blocks for result in evidence.calibrations for work in result.works)
    if comparison["metrics"]["swapped_bytes"]["simulated"] and not has_seen_swaps:
        return ["the calibration saw no swap, so copies cost nothing in the simulation: make its pool smaller"]
    return []


def _worst(lockstep: Sequence[Lockstep]) -> Lockstep:
    parted = [each for each in lockstep if each.first_difference is not None]
    return parted[0] if parted else Lockstep(sum(each.num_decisions for each in lockstep))


def _calibration_block(fit: Fit, calibrator: EngineRunner) -> dict[str, Any]:
    experiment = calibrator.setup.experiment
    return {
        "trace": experiment.trace.name,
        "num_blocks": experiment.pool.num_blocks,
        "num_steps": fit.num_steps,
        "held_out_mape_ratio": fit.held_out_mape_ratio,
        "held_out_bias_ratio": fit.held_out_bias_ratio,
        "coefficients": fit.coefficients,
    }
