"""A verb as a Hydra application: its jobs, what came of them, the rows of a sweep, the exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from core.whole_file import remove_empty
from kvtwin.composition import CLASS_GROUPS, OWN, composition_error, hydra_words, with_seeds
from kvtwin.failures import tell, tell_failure
from kvtwin.flags import SHOWING_FLAGS, SWEEP_FLAGS
from kvtwin.foreseeing import refuse_unnamed
from kvtwin.plugins import offer_plugins
from kvtwin.settings import check_settings
from kvtwin.single_run import run_single

if TYPE_CHECKING:
    from kvtwin.trace_shelf import TraceShelf

SWEEP_FILE = Path("runs/multirun.yaml")  # which Hydra writes before it sees whether there is a job
INTERRUPTED = 130  # exit status after Ctrl-C
WRITTEN_BY_EVERY_JOB = ("out", "hardware_file")
MADE_ROOM = {f"{group}={OWN}" for group in CLASS_GROUPS}  # for a class of the user's: nobody wrote these words
NO_LABELS = (*WRITTEN_BY_EVERY_JOB, "report", "trace", "model", "hardware")  # labelled already, or nothing to compare


@dataclass(frozen=True)
class JobOutcome:
    """What one job gives back: the summary of its run, if there is one, and its exit status."""

    summary: dict[str, Any] | None
    exit_status: int = 0
    folder: Path | None = None  # of the run


class JobFailed(Exception):
    """A job failed in a process of its own: how Hydra's parallel launchers learn of it."""


class ReaderGone(BaseException):
    """Nobody reads our output any more. No Exception, which Hydra would remark upon."""


@dataclass
class Jobs:
    """Runs the jobs that Hydra hands over and keeps what came of them. One that fails leaves the others running."""

    run: Callable[[DictConfig], JobOutcome]
    words: Sequence[str] = ()  # of the command line
    traces: TraceShelf | None = None  # of jobs that may run side by side; None: one at a time
    is_repeated: bool = False  # by `seeds=N`: what counts are means, not single runs
    heading: str = ""  # of the rows of a sweep
    outcomes: list[JobOutcome] = field(default_factory=list)
    is_sweep: bool = False
    is_interrupted: bool = False
    process_id: int = field(default_factory=os.getpid)

    def __call__(self, config: DictConfig) -> None:
        """Ctrl-C, seen by the job or not, ends a whole sweep, and so does a reader that has gone."""
        self.is_sweep = in_sweep()
        outcome = self.attempt(config)
        self.outcomes.append(outcome)
        if outcome.exit_status == INTERRUPTED:
            raise KeyboardInterrupt
        if outcome.exit_status and os.getpid() != self.process_id:
            raise JobFailed(f"exit status {outcome.exit_status}")

    def attempt(self, config: DictConfig) -> JobOutcome:
        """Runs one job; what ends it is told, and shows in the exit status."""
        try:
            check_settings(config)
            if self.is_sweep:
                refuse_unnamed(config, HydraConfig.get().runtime.choices, [*self.words, *_swept_in_files()])
            return self.run(config)
        except BrokenPipeError:
            raise ReaderGone from None
        except Exception as error:
            return JobOutcome(None, tell_failure(error, job_name()))

    def print_rows(self) -> None:
        from kvtwin.paper_figures import paper_figures
        from kvtwin.tables import print_paper_figures, print_sweep

        whole = [(job.summary, job.folder) for job in self.outcomes if job.summary and not job.summary["interrupted"]]
        summaries = [summary for summary, _ in whole]
        if not self.is_sweep or not summaries:
            return
        if self.heading:
            print(self.heading)
        if self.is_repeated and not self.is_interrupted:
            _print_means(whole)
        else:
            print_sweep(summaries)
        figures = paper_figures(summaries[0]["config"])
        if figures is not None:
            print_paper_figures(figures.source, figures.rows(summaries))

    @property
    def exit_status(self) -> int:
        return max((outcome.exit_status for outcome in self.outcomes), default=0)


def _print_means(runs: Sequence[tuple[dict[str, Any], Path | None]]) -> None:
    """Writes and shows what several seeds say together."""
    from kvtwin.repeats import repeats_of, write_repeats
    from kvtwin.seeds_tables import print_seeds

    repeats = repeats_of(runs)
    print_seeds(repeats, [write_repeats(Path("runs"), each).name for each in repeats])
    if all(each.are_all_equal for each in repeats):
        tell("all seeds gave the same: a recorded trace has nothing drawn, trace=synth has; see docs/sweeps.md")


class SweepGuard(Callback):
    """Refuses sweeps that could only go wrong: jobs that write to one place, or a launcher that a job names itself.

    Exits by SystemExit: Hydra swallows every other exception of a callback.
    """

    def __init__(self) -> None:
        self._launcher = ""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        self._launcher = _launcher(config)
        written = OmegaConf.to_container(config, resolve=False)
        assert isinstance(written, dict)
        for key in WRITTEN_BY_EVERY_JOB:
            name = written.get(key)
            if name is not None and "${hydra:job." not in str(name):
                tell(f"{key}={name}: every job of the sweep would write there; expected ${{hydra:job.num}} in it")
                sys.exit(2)

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        if self._launcher:
            _refuse_other_launcher(config, self._launcher)


def refuse_late_launcher(config: DictConfig, sweep: DictConfig) -> None:
    """Ends the sweep for a job that names another launcher than the one the sweep runs with."""
    _refuse_other_launcher(config, _launcher(sweep))


def _refuse_other_launcher(config: DictConfig, launcher: str) -> None:
    if _launcher(config) != launcher:
        tell(
            f"hydra/launcher={_launcher(config)} is set by what the sweep varies, but the sweep already runs with "
            f"hydra/launcher={launcher}; expected it on the command line"
        )
        sys.exit(2)


def _launcher(config: DictConfig) -> str:
    return str(config.hydra.runtime.choices["hydra/launcher"])


def run_app(
    verb: str,
    args: Sequence[str],
    run: Callable[[DictConfig], JobOutcome],
    traces: TraceShelf | None = None,
    heading: str = "",
) -> int:
    """Runs one verb, once or as a sweep, and returns the exit status. The working folder is searched for classes.

    `heading`: what the rows of a sweep are, where that does not go without saying.

    Jobs of a sweep run side by side if they take their traces from the shelf `traces`. Those of other verbs measure
    time, which neighbours would disturb: they run one at a time. Raises InputError for words that Hydra cannot take.
    """
    words = hydra_words(with_seeds(verb, args))
    from kvtwin.launcher import offer_launcher  # which knows of Jobs

    is_repeated = any(arg.startswith("seeds=") for arg in args)
    jobs = Jobs(run, words, traces, is_repeated, heading)
    offer_plugins()
    offer_launcher()
    with _command_line(verb, words):
        try:
            if not run_single(verb, words, jobs):
                hydra.main(version_base="1.3", config_path="pkg://conf", config_name=verb)(jobs)()
        except JobFailed:
            return 1  # told in the process of the job
        except KeyboardInterrupt:
            jobs.is_interrupted = True
            tell("interrupted")
            return INTERRUPTED
        except SystemExit as ended:  # Hydra's own: help, or its parser's complaint
            return int(ended.code or 0)
        except (ReaderGone, BrokenPipeError):  # seen by a job, or by Hydra's own printing
            raise BrokenPipeError from None
        except Exception as error:  # of Hydra itself, since a job's are told where they arise
            is_shown = any(word in SHOWING_FLAGS for word in words)
            raise composition_error(error, verb, is_shown) from error
        finally:
            _remove_lone(SWEEP_FILE)
            jobs.print_rows()
    if not jobs.outcomes and words[:1] and words[0] in SWEEP_FLAGS:
        tell("the jobs ran in processes of their own, their folders are under runs/; kvtwin collect prints the rows")
    return jobs.exit_status


def _remove_lone(file: Path) -> None:
    """The file, and its folder, where there is nothing else in there."""
    if file.exists() and len(list(file.parent.iterdir())) == 1:
        file.unlink()
        remove_empty([file.parent])


@contextmanager
def _command_line(verb: str, words: Sequence[str]) -> Iterator[None]:
    """Hydra reads sys.argv; and it raises what went wrong, rather than printing it and exiting, under this variable.

    The working folder comes last on the path: our packages have common names, and a stray sim/ must not hide ours.
    """
    argv, path, full_error = sys.argv, list(sys.path), os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = [f"kvtwin {verb}", *words], "1"
    sys.path.append(str(Path.cwd()))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        del os.environ["HYDRA_FULL_ERROR"]
        if full_error is not None:
            os.environ["HYDRA_FULL_ERROR"] = full_error


def in_sweep() -> bool:
    """Whether the job that runs is one of a sweep."""
    return HydraConfig.get().mode is RunMode.MULTIRUN


def _swept_in_files() -> list[str]:
    """What an experiment's own YAML sweeps, as it would be written on the command line."""
    return [f"{key}={choices}" for key, choices in (HydraConfig.get().sweeper.get("params") or {}).items()]


def job_name() -> str:
    """Which job of a sweep runs, with the words that are its own; nothing where there is but one, or none."""
    if not HydraConfig.initialized() or not in_sweep():
        return ""
    words = (word for word in HydraConfig.get().overrides.task if word not in MADE_ROOM)
    return f"job {HydraConfig.get().job.num} ({' '.join(words)})"


def override_labels(config: DictConfig) -> dict[str, Any]:
    """What the command line, or the sweep, chose for this job: by the end of each key, or all of it where ends agree.

    Values come from the resolved configuration. What has a name of its own, or is a class, has its label already, and
    `report` changes no figure.
    """
    keys = [word.lstrip("+").partition("=")[0] for word in HydraConfig.get().overrides.task]
    ends = [key.rpartition(".")[2] for key in keys]
    labels: dict[str, Any] = {}
    for word, key, end in zip(HydraConfig.get().overrides.task, keys, ends, strict=True):
        choice = word.partition("=")[2]
        is_told = end == "_target_" or word in MADE_ROOM or key in NO_LABELS
        if is_told or key.startswith(("~", "hydra.")):
            continue
        value = OmegaConf.select(config, key)
        labels[end if ends.count(end) == 1 else key] = choice if isinstance(value, DictConfig | None) else value
    return labels
