"""Jobs as tasks of Ray, on this machine or on those of a cluster; answers are handed over in the jobs' order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from core.errors import InputError
from engine.interrupt import DeferredInterrupt
from kvtwin.processes import Finished

Job = TypeVar("Job")
Answer = TypeVar("Answer")

_POLL_S = 0.2  # Ctrl-C is not seen while Ray waits


def require_ray() -> None:
    """Raises InputError where Ray is not installed."""
    spec = find_spec("ray")
    if spec is None or spec.origin is None:  # a folder of that name in the working folder is no Ray
        raise InputError("cluster.shards_on=ray: this needs Ray, pip install ray; expected that, or processes")


class RayTasks(Generic[Job, Answer]):
    """`run(job)` for every job, at most `num_tasks` at once: `kvtwin.processes.JobProcesses` over Ray.

    `run` goes into Ray's object store once, arrays and all. A Ray that runs already is used, or the one at RAY_ADDRESS;
    else one is started here, and ends with the context. After Ctrl-C no job begins, and those that run come to their
    end.
    """

    def __init__(
        self, run: Callable[[Job], Answer], jobs: Sequence[Job], num_tasks: int, interrupt: DeferredInterrupt
    ) -> None:
        self._run = run
        self._jobs = jobs
        self._num_tasks = num_tasks
        self._interrupt = interrupt
        self._ray: Any = import_module("ray")
        self._is_ours = False

    def __enter__(self) -> RayTasks[Job, Answer]:
        self._interrupt.stops_after = "the replicas that run"
        if not self._ray.is_initialized():
            num_cpus = None if "RAY_ADDRESS" in os.environ else self._num_tasks
            self._ray.init(num_cpus=num_cpus, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
            self._is_ours = True
        return self

    def __exit__(self, *error: Any) -> None:
        if self._is_ours:
            self._ray.shutdown()

    def results(self, show: Callable[[int], None]) -> Iterator[Finished[Answer]]:
        """What came of each job, in their order. Fewer than there are jobs after Ctrl-C. `show` is told how many have
        ended.
        """
        task = self._ray.remote(max_retries=0)(_run_job)
        run, jobs = self._ray.put(self._run), enumerate(self._jobs)
        running: dict[Any, int] = {}
        finished: dict[int, Finished[Answer]] = {}
        num_yielded = 0
        while True:
            while len(running) < self._num_tasks and not self._interrupt.requested:
                following = next(jobs, None)
                if following is None:
                    break
                running[task.remote(run, following[1])] = following[0]
            if not running:
                return
            for done in self._ray.wait(list(running), timeout=_POLL_S)[0]:
                number = running.pop(done)
                finished[number] = self._finished(number, done)
            show(num_yielded + len(finished))
            while num_yielded in finished:
                yield finished.pop(num_yielded)
                num_yielded += 1

    def _finished(self, number: int, done: Any) -> Finished[Answer]:
        try:
            return Finished(number, self._ray.get(done))
        except self._ray.exceptions.RayTaskError as error:
            return Finished(number, None, error=error.cause)
        except self._ray.exceptions.RayError as error:  # its process was killed, or its machine has gone
            return Finished(number, None, error=RuntimeError(str(error).partition("\n")[0]))


def _run_job(run: Callable[[Job], Answer], job: Job) -> Answer:
    return run(job)
