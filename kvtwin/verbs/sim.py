"""`kvtwin sim`: replay a trace in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from omegaconf import DictConfig

from kvtwin.paper_figures import check_paper_figures
from kvtwin.run_folder import run_folder
from kvtwin.simulating import load_cost, load_simulation, other_model_text, simulate_records
from kvtwin.sweep import JobOutcome, override_labels, run_app
from kvtwin.trace_shelf import TraceShelf
from kvtwin.verbs.finishing import finish, note, report_writer


def run(args: Sequence[str]) -> int:
    traces = TraceShelf()
    return run_app("sim", args, partial(_job, traces), traces)


def _job(traces: TraceShelf, config: DictConfig) -> JobOutcome:
    write_report = report_writer(config)
    check_paper_figures(config)
    experiment = load_simulation(config, trace=traces.trace(config))
    cost = load_cost(config)
    note(other_model_text(config))
    with run_folder(experiment.config) as folder:
        records = simulate_records(experiment, cost)
        records.summary["labels"] |= override_labels(config)
        run = records.write(folder)
        write_report(run)
    return finish(run)
