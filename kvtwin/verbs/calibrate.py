"""`kvtwin calibrate`: fit the linear cost model to engine steps on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from core.errors import InputError
from core.whole_file import can_be_written
from kvtwin.formatting import error_text, ratio_text
from kvtwin.sweep import INTERRUPTED, JobOutcome, run_app


def run(args: Sequence[str]) -> int:
    return run_app("calibrate", args, _job)


def _job(config: DictConfig) -> JobOutcome:
    if config.out is not None:
        raise InputError(f"out={config.out}: a calibration leaves one file and no run; expected hardware_file=FILE")
    path = Path(config.hardware_file)
    if not can_be_written(path):
        raise InputError(f"hardware_file={path}: cannot be written; expected a file in a folder that can")

    from kvtwin.engine_runs import load_engine_run  # torch takes its time
    from kvtwin.hardware_file import write_hardware_file
    from kvtwin.validating import fit_results

    runner = load_engine_run(config)
    result = runner.run("calibration")
    if result.interrupted:
        return JobOutcome(None, INTERRUPTED)
    fit = fit_results([result])
    experiment = runner.setup.experiment
    write_hardware_file(path, fit, result.records.summary["engine"], experiment.model.name, experiment.trace.name)
    print(
        f"{fit.num_steps:,} steps; on held-out blocks of time: MAPE {ratio_text(fit.held_out_mape_ratio)}, "
        f"bias of the sum {error_text(fit.held_out_bias_ratio)}"
    )
    print(path)
    return JobOutcome(result.records.summary)
