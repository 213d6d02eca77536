"""`kvtwin sim`: replay a trace in the simulator."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from kvtwin.simulating import simulate_config
from kvtwin.sweep import JobOutcome, run_app, with_overrides
from kvtwin.tables import print_tables, run_table


def run(args: Sequence[str]) -> int:
    return run_app("sim", list(args), _job)


def _job(config: DictConfig) -> JobOutcome:
    finished = simulate_config(config)
    if config.report:
        from kvtwin.report import write_run_report

        write_run_report(finished.folder / "report.html", finished)
    if HydraConfig.get().mode is RunMode.RUN:
        print_tables(run_table(finished.summary))
        print(finished.folder)
    return JobOutcome(with_overrides(finished.summary, config))
