"""Hydra's launcher `kvtwin`, the default: a sweep's jobs over all cores of this machine, with each trace read once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, TypeAlias

from hydra import version
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from core.errors import InputError
from engine.interrupt import DeferredInterrupt
from kvtwin.failures import tell
from kvtwin.progress import progress_bar
from kvtwin.sweep import INTERRUPTED, JobOutcome, Jobs, refuse_late_launcher
from kvtwin.sweep_configs import SweepConfigs

if TYPE_CHECKING:
    from kvtwin.processes import Finished

Job: TypeAlias = tuple[int, Sequence[str]]  # its number, and the words that make its configuration


def offer_launcher() -> None:
    """Makes `hydra/launcher=kvtwin` known to Hydra, for the life of this process.

    Hydra takes launchers from the package `hydra_plugins` only, and imports all that lies there whenever any Hydra
    application starts. So no file of ours does: this module is given a name in that package.
    """
    try:
        import_module("hydra_plugins")
    except ModuleNotFoundError:
        sys.modules["hydra_plugins"] = module_from_spec(ModuleSpec("hydra_plugins", None, is_package=True))
    sys.modules["hydra_plugins.kvtwin"] = sys.modules[__name__]
    Plugins.instance().register(SweepLauncher)


@dataclass(frozen=True)
class JobRunner:
    """Runs a job of a sweep in whatever process it is called in."""

    jobs: Jobs
    context: HydraContext
    sweep: DictConfig

    def config_of(self, job: Job) -> DictConfig:
        number, words = job
        config = self.context.config_loader.load_sweep_config(self.sweep, list(words))
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        return config

    def run(self, job: Job) -> JobOutcome:
        returned = run_job(
            task_function=self.jobs.attempt,
            config=self.config_of(job),
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
            hydra_context=self.context,
        )
        outcome: JobOutcome = returned.return_value
        return outcome

    def run_alone(self, job: Job) -> JobOutcome:
        """The same in a process of its own, which may have been started afresh."""
        version.setbase("1.3")
        setup_globals()
        try:
            return self.run(job)
        except KeyboardInterrupt:
            return JobOutcome(None, INTERRUPTED)


class SweepLauncher(Launcher):
    """Runs jobs as Hydra's basic launcher does, with the same folders, rows and exit status, only side by side.

    Configurations are composed once for each combination of options (`SweepConfigs`). Jobs that measure time are never
    run side by side: their verbs bring no shelf of traces. Each job is a plain function of its configuration, so what
    it finds does not depend on the process that it runs in.
    """

    __module__ = "hydra_plugins.kvtwin"  # see offer_launcher

    def __init__(self, processes: int | None = None) -> None:
        self._num_processes = processes

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        assert isinstance(task_function, Jobs)
        # The sweeper composes every job with the context's loader, too, before the first one runs.
        hydra_context.config_loader = SweepConfigs(hydra_context.config_loader)
        self._runner = JobRunner(task_function, hydra_context, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Runs the jobs; their outcomes are `Jobs.outcomes` as well. Raises KeyboardInterrupt after Ctrl-C."""
        setup_globals()
        jobs: list[Job] = list(enumerate(job_overrides, initial_job_idx))
        if not jobs:
            raise InputError(
                f"{' '.join(self._runner.jobs.words)}: no job; expected a glob(...) that an option matches"
            )
        num_processes = min(self._allowed_processes(), len(jobs))
        self._look_ahead(jobs)
        self._runner.jobs.is_sweep = True
        outcomes = map(self._runner.run, jobs) if num_processes <= 1 else self._side_by_side(jobs, num_processes)
        returned = []
        for (_, words), outcome in zip(jobs, outcomes, strict=False):  # fewer outcomes after Ctrl-C
            self._runner.jobs.outcomes.append(outcome)
            returned.append(JobReturn(words, status=JobStatus.COMPLETED, _return_value=outcome))
            if outcome.exit_status == INTERRUPTED and num_processes <= 1:
                break
        if len(returned) < len(jobs) or any(each.return_value.exit_status == INTERRUPTED for each in returned):
            raise KeyboardInterrupt
        return returned

    def _allowed_processes(self) -> int:
        given = self._num_processes
        if given is not None and (not isinstance(given, int) or given < 1):
            raise InputError(f"hydra.launcher.processes={given}: expected a whole number of at least 1, or null")
        if self._runner.jobs.traces is None:
            if given is not None and given > 1:
                raise InputError(
                    f"hydra.launcher.processes={given}: jobs that measure times run alone; expected 1 or null"
                )
            return 1
        from kvtwin.processes import num_cores  # only a sweep has use for it

        return given or num_cores()

    def _look_ahead(self, jobs: Sequence[Job]) -> None:
        """Sees what the jobs will read, and that none names a launcher of its own."""
        for job in jobs:
            config = self._runner.config_of(job)
            refuse_late_launcher(config, self._runner.sweep)
            if self._runner.jobs.traces is not None:
                self._runner.jobs.traces.announce(config)

    def _side_by_side(self, jobs: Sequence[Job], num_processes: int) -> Iterator[JobOutcome]:
        from kvtwin.processes import JobProcesses

        assert self._runner.jobs.traces is not None
        self._runner.jobs.traces.fill()
        with (
            DeferredInterrupt() as interrupt,
            JobProcesses(self._runner.run_alone, jobs, num_processes, interrupt) as processes,
            progress_bar("sweep", len(jobs), "jobs") as progress,
        ):
            for finished in processes.results(progress.show):
                if finished.error is None:  # else Hydra has printed how to learn more, which is not ours to say
                    sys.stdout.write(finished.out)
                    sys.stderr.write(finished.err)
                yield finished.answer or _without_answer(finished, jobs)


def _without_answer(finished: Finished[JobOutcome], jobs: Sequence[Job]) -> JobOutcome:
    if finished.exit_code is None and finished.error is None:
        return JobOutcome(None, INTERRUPTED)
    number, words = jobs[finished.number]
    reason = f"its process ended with exit code {finished.exit_code}"
    if finished.error is not None:
        reason = str(finished.error).partition("\n")[0]
    tell(f"job {number} ({' '.join(words)}): {reason}")
    return JobOutcome(None, 1)
