"""`kvtwin calibrate`: fit the linear cost model to engine steps on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from kvtwin.sweep import INTERRUPTED, JobOutcome, run_app


def run(args: Sequence[str]) -> int:
    return run_app("calibrate", list(args), _job)


def _job(config: DictConfig) -> JobOutcome:
    from kvtwin.engine_runs import load_engine_run
    from kvtwin.hardware_file import write_hardware_file
    from kvtwin.validating import fit_results

    runner = load_engine_run(config)
    result = runner.run("calibration")
    if result.interrupted:
        return JobOutcome(None, exit_status=INTERRUPTED)
    fit = fit_results([result])
    path = Path(config.hardware_file)
    experiment = runner.setup.experiment
    write_hardware_file(path, fit, result.records.summary["engine"], experiment.model.name, experiment.trace.name)
    print(
        f"{fit.num_steps} steps; on held-out blocks of time: MAPE {fit.held_out_mape_ratio:.1%}, "
        f"bias of the sum {fit.held_out_bias_ratio:+.1%}"
    )
    print(path)
    return JobOutcome(result.records.summary)
