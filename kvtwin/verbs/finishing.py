"""The end of a run, the same for simulator and engine: report, notes, table, exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from omegaconf import DictConfig

from kvtwin.failures import require, tell
from kvtwin.formatting import dropped_text
from kvtwin.store import Run
from kvtwin.sweep import INTERRUPTED, JobOutcome, in_sweep, job_name


def report_writer(config: DictConfig) -> Callable[[Run], None]:
    """What writes report.html, where it is wanted; asked for before the run, which a missing plotly would waste."""
    if not config.report:
        return lambda run: None
    require("plotly")
    from kvtwin.report import write_run_report

    return lambda run: write_run_report(run.folder / "report.html", run)


def finish(run: Run) -> JobOutcome:
    """Prints what there is to say of a written run; a job of a sweep has a row of the sweep's table instead."""
    tell_notes(run.summary)
    if not in_sweep():
        from kvtwin.tables import print_tables, run_table  # a run begins the sooner

        print_tables(run_table(run.summary))
        print(run.folder)
    elif run.is_interrupted:
        tell(f"what ran of this job is in {run.folder}")
    labels = run.summary["labels"] | {"run": run.folder.name}
    return JobOutcome({**run.summary, "labels": labels}, INTERRUPTED if run.is_interrupted else 0, run.path)


def tell_notes(summary: Mapping[str, Any]) -> None:
    """What a reader of the figures should know first: rows left out, rejected requests, features not honoured."""
    for text in _notes(summary):
        note(text)


def note(text: str) -> None:
    """One line on standard error, with the job of a sweep that it is about; nothing for an empty one."""
    if text:
        job = job_name()
        print(f"note: {job}: {text}" if job else f"note: {text}", file=sys.stderr)


def _notes(summary: Mapping[str, Any]) -> Iterator[str]:
    trace, metrics = summary["trace"], summary["metrics"]
    if trace["num_dropped"]:
        yield dropped_text(trace["num_dropped"], trace["name"])
    num_rejected, num_requests = metrics["outcomes"]["rejected"], trace["num_requests"]
    if num_rejected:
        yield f"{num_rejected:,} of {num_requests:,} requests were rejected: they can never fit the pool or the model"
    if metrics["prefix_hit_ratio"] == 0:
        yield (
            f"no prefix hits: prefixes are matched in whole blocks of {summary['pool']['block_size_tokens']} tokens, "
            f"so a shared prefix below one block cannot hit"
        )
    if summary["ignored"]:
        yield f"not honoured by this run: {', '.join(summary['ignored'])}"
    if metrics["num_swap_fallbacks"]:
        yield (
            f"{metrics['num_swap_fallbacks']:,} preemptions found no room on the host and recompute "
            f"(pool.host_blocks={summary['pool']['host_blocks']})"
        )
