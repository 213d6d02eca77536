"""`kvtwin engine`: replay a trace on the real engine."""

from __future__ import annotations

from collections.abc import Sequence

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from kvtwin.simulating import store
from kvtwin.sweep import INTERRUPTED, JobOutcome, run_app, with_overrides
from kvtwin.tables import print_tables, run_table


def run(args: Sequence[str]) -> int:
    return run_app("engine", list(args), _job)


def _job(config: DictConfig) -> JobOutcome:
    from kvtwin.engine_runs import load_engine_run

    result = load_engine_run(config).run()
    finished = store(config, result.records)
    if config.report:
        from kvtwin.report import write_run_report

        write_run_report(finished.folder / "report.html", finished)
    if HydraConfig.get().mode is RunMode.RUN:
        print_tables(run_table(finished.summary))
        print(finished.folder)
    status = INTERRUPTED if result.interrupted else 0
    return JobOutcome(with_overrides(finished.summary, config), exit_status=status)
