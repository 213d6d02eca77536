"""`kvtwin engine`: replay a trace on the real engine."""

from __future__ import annotations

from collections.abc import Sequence

from omegaconf import DictConfig

from kvtwin.run_folder import run_folder
from kvtwin.sweep import JobOutcome, override_labels, run_app
from kvtwin.verbs.finishing import finish, note, report_writer


def run(args: Sequence[str]) -> int:
    return run_app("engine", args, _job)


def _job(config: DictConfig) -> JobOutcome:
    from kvtwin.engine_runs import load_engine_run

    write_report = report_writer(config)
    runner = load_engine_run(config)
    note(runner.setup.model.notice)
    note(runner.setup.threads_notice)
    note(str(runner.setup.memory or ""))
    with run_folder(runner.setup.experiment.config) as folder:
        records = runner.run().records
        records.summary["labels"] |= override_labels(config)
        run = records.write(folder)
        write_report(run)
    return finish(run)
