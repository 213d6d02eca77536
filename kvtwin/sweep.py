"""What becomes of a command's jobs: rows of a sweep, failures, the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from core.errors import InputError
from kvtwin.naming import check_choices


INTERRUPTED = 130  # exit status after Ctrl-C


@dataclass(frozen=True)
class JobOutcome:
    """What one job gives back: its summary, or why it failed."""

    summary: dict[str, Any] | None
    error: str = ""
    exit_status: int = 0


class JobOutcomes(Callback):
    """Hydra calls this around every job. After a sweep it prints a row per job; any failure shows in the exit status.

    Exits by SystemExit: Hydra swallows every other exception of a callback.
    """

    def __init__(self) -> None:
        self._outcomes: list[JobOutcome] = []

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        returned = job_return._return_value
        if isinstance(returned, JobOutcome):
            self._outcomes.append(returned)

    def on_run_end(self, config: DictConfig, **kwargs: Any) -> None:
        self._exit()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        from kvtwin.tables import print_tables, sweep_table

        summaries = [outcome.summary for outcome in self._outcomes if outcome.summary is not None]
        if summaries:
            print_tables(sweep_table(summaries))
        self._exit()

    def _exit(self) -> None:
        status = max((outcome.exit_status for outcome in self._outcomes), default=0)
        if status:
            sys.exit(status)


def with_overrides(summary: dict[str, Any], config: DictConfig) -> dict[str, Any]:
    """The summary with the job's overridden values among its labels, so that a sweep's rows can be told apart.

    Values come from the resolved configuration; groups have labels of their own already.
    """
    labels = dict(summary["labels"])
    for override in HydraConfig.get().overrides.task:
        key = override.lstrip("+").partition("=")[0]
        value = OmegaConf.select(config, key)
        if not isinstance(value, DictConfig) and not key.endswith("._target_"):
            labels[key.rpartition(".")[2]] = value
    return {**summary, "labels": labels}


def run_app(verb: str, args: list[str], job: Callable[[DictConfig], JobOutcome]) -> int:
    """Runs one verb as a Hydra application. `args` are Hydra's; a user's own module is found in the working folder."""
    check_choices(args)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: our packages have common names, and a stray sim/ must not hide ours
    sys.argv = [f"kvtwin {verb}", *args]

    def task(config: DictConfig) -> JobOutcome:
        try:
            return job(config)
        except InputError as error:
            print(f"kvtwin: {error}", file=sys.stderr)
            return JobOutcome(None, str(error), 2)

    hydra.main(version_base="1.3", config_path="pkg://conf", config_name=verb)(task)()
    return 0
