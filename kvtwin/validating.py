"""Validation: one trace on engine and simulator. Decisions in lockstep; times by a cost model that was fitted elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from kvtwin.calibration import Fit, fit_linear
from kvtwin.comparison import Lockstep, compare_runs
from kvtwin.engine_runs import EngineResult, EngineRunner, load_engine_run
from kvtwin.engine_setup import load_model
from kvtwin.experiment import instantiate_one
from kvtwin.hardware_file import write_hardware_file
from kvtwin.replaying import check_lockstep
from kvtwin.report import write_report
from kvtwin.simulating import run_folder, simulate_records
from kvtwin.store import Run, write_atomically, write_run
from kvtwin.summary import RunRecords

WARM_UP_REQUESTS = 3


@dataclass(frozen=True)
class Validation:
    """What a validation found, and where it lies. `comparison` is None where Ctrl-C came before there was one."""

    folder: Path
    comparison: dict[str, Any] | None
    notices: list[str]

    @property
    def is_identical(self) -> bool:
        return self.comparison is not None and self.comparison["lockstep"]["identical"]


def validate_config(config: DictConfig) -> Validation:
    """Calibrates and runs by turns, so that a drift of the machine touches both alike; then compares and reports."""
    model = load_model(config, instantiate_one(config.model, "model"))
    calibrator = load_engine_run(_calibration_config(config), model=model)
    runner = load_engine_run(config, model=model)
    notices = [model.notice] if model.notice else []
    folder = run_folder(config, runner.setup.experiment.config)
    load_engine_run(_warm_up_config(config), model=model).run("warm-up")
    calibrations: list[EngineResult] = []
    runs: list[Run] = []
    lockstep: list[Lockstep] = []
    probes: list[float] = []
    for repeat in range(1, config.validate.repeats + 1):
        calibrations.append(calibrator.run(f"calibration {repeat}"))
        if calibrations[-1].interrupted:
            return Validation(folder, None, notices)
        result = runner.run(f"engine run {repeat}")
        runs.append(_write(folder / f"engine-{repeat}", result.records))
        if result.interrupted:
            return Validation(folder, None, notices)
        probes += [reading.duration_ps for reading in result.probe_readings]
        lockstep.append(check_lockstep(runs[-1], result.log))
    fit = fit_results(calibrations)
    drift = _drift(probes, calibrations)
    simulated = simulate_records(runner.setup.experiment.spanning(), fit.model(drift))
    simulated.summary["calibration"] = _calibration_block(fit, drift, calibrator)
    sim = _write(folder / "sim", simulated)
    comparison = compare_runs(sim, runs, _worst(lockstep))
    comparison["calibration"] = simulated.summary["calibration"]
    write_hardware_file(
        folder / "hardware.yaml",
        fit,
        runs[0].summary["engine"],
        runner.setup.experiment.model.name,
        calibrator.setup.experiment.trace.name,
    )
    write_atomically(folder / "comparison.json", json.dumps(comparison, indent=1, allow_nan=False).encode())
    if config.report:
        write_report(folder / "report.html", sim, runs, comparison, notices)
    return Validation(folder, comparison, notices)


def fit_results(results: Sequence[EngineResult]) -> Fit:
    """One fit over the steps of several engine runs."""
    works = [work for result in results for work in result.works]
    return fit_linear(works, np.concatenate([result.durations_s for result in results]))


def _drift(probes: Sequence[float], calibrations: Sequence[EngineResult]) -> float:
    """How much slower the machine's fixed probe ran during the engine runs than during the calibrations; 1 if unknown."""
    before = [reading.duration_ps for result in calibrations for reading in result.probe_readings]
    return median(probes) / median(before) if probes and before else 1.0


def _calibration_config(config: DictConfig) -> DictConfig:
    merged = OmegaConf.merge(config, config.validate.calibration)
    assert isinstance(merged, DictConfig)
    return merged


def _warm_up_config(config: DictConfig) -> DictConfig:
    """A few requests, so that no run pays for the first use of a library."""
    calibration = _calibration_config(config)
    calibration.trace.limit = WARM_UP_REQUESTS
    return calibration


def _worst(lockstep: Sequence[Lockstep]) -> Lockstep:
    parted = [each for each in lockstep if each.first_difference is not None]
    return parted[0] if parted else Lockstep(sum(each.num_decisions for each in lockstep))


def _calibration_block(fit: Fit, drift: float, calibrator: EngineRunner) -> dict[str, Any]:
    experiment = calibrator.setup.experiment
    return {
        "trace": experiment.trace.name,
        "num_blocks": experiment.pool.num_blocks,
        "num_steps": fit.num_steps,
        "held_out_mape_ratio": fit.held_out_mape_ratio,
        "held_out_bias_ratio": fit.held_out_bias_ratio,
        "drift_ratio": drift,
        "coefficients": fit.coefficients,
    }


def _write(folder: Path, records: RunRecords) -> Run:
    return write_run(
        folder,
        records.summary,
        requests=records.requests,
        steps=records.steps,
        gaps=records.gaps,
        files=records.files,
    )
