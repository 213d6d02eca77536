"""Processes of this machine that take one job after the other; answers are handed over in the jobs' order."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, Generic, TypeVar

from engine.interrupt import DeferredInterrupt, do_nothing

Job = TypeVar("Job")
Answer = TypeVar("Answer")

# A forked process has what its parent has read. Elsewhere than on Linux forking is not safe, and a copy is sent.
START_METHOD = "fork" if sys.platform == "linux" else "spawn"
# Not SIGTERM, which a job's own processes inherit and may have to die of.
HANDED_ON = getattr(signal, "SIGUSR1", signal.SIGTERM)


def num_cores() -> int:
    """How many cores this process may use; 1 for one that was itself started to share work."""
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Finished(Generic[Answer]):
    """A job that has ended: its answer and what it printed. No answer: it raised an error, was interrupted, or its
    process ended.
    """

    number: int  # from 0
    answer: Answer | None
    out: str = ""
    err: str = ""
    error: Exception | None = None
    exit_code: int | None = None  # of a process that ended by itself; negative: of a signal


@dataclass
class _Worker:
    process: multiprocessing.process.BaseProcess
    connection: Connection
    number: int = -1  # of the job it runs


class JobProcesses(Generic[Job, Answer]):
    """`num_processes` processes that run `run(job)` for every job, each the next one when it has answered.

    After Ctrl-C, which `interrupt` hears of, no job begins, and those that run are interrupted. A process that dies
    (killed for memory, a fault in compiled code) takes only its job with it, and a new one takes its place. A context
    manager: the processes live inside. On Linux they are forked, and share what `run` holds; elsewhere it is pickled.
    """

    def __init__(
        self, run: Callable[[Job], Answer], jobs: Sequence[Job], num_processes: int, interrupt: DeferredInterrupt
    ) -> None:
        self._run = run
        self._jobs = jobs
        self._num_processes = num_processes
        self._context: Any = multiprocessing.get_context(START_METHOD)  # typeshed's base class has no Process
        self._interrupt = interrupt
        self._num_given = 0
        self._busy: list[_Worker] = []
        self._finished: dict[int, Finished[Answer]] = {}

    def __enter__(self) -> JobProcesses[Job, Answer]:
        self._interrupt.pass_on = self._interrupt_busy
        for _ in range(min(self._num_processes, len(self._jobs))):
            self._start()
        return self

    def __exit__(self, *error: Any) -> None:
        if not self._interrupt.requested:
            self._interrupt_busy()  # nobody waits for their answers any more
        for worker in self._busy:
            _dismiss(worker)
        self._interrupt.pass_on = do_nothing

    def results(self, show: Callable[[int], None]) -> Iterator[Finished[Answer]]:
        """What came of each job, in their order, as soon as it and all before it have ended.

        Fewer than there are jobs after Ctrl-C. `show` is told how many have ended.
        """
        num_yielded = 0
        while self._busy:
            self._collect()
            show(num_yielded + len(self._finished))
            while num_yielded in self._finished:
                yield self._finished.pop(num_yielded)
                num_yielded += 1

    def _start(self) -> None:
        """One process more, with a job."""
        ours, theirs = self._context.Pipe()
        inherited = [ours, *(worker.connection for worker in self._busy)] if START_METHOD == "fork" else []
        process = self._context.Process(target=_serve, args=(self._run, theirs, inherited))
        with _masked(signal.SIG_BLOCK, {signal.SIGINT, HANDED_ON}):
            process.start()
        theirs.close()
        self._give_job(_Worker(process, ours))

    def _give_job(self, worker: _Worker) -> None:
        worker.number = self._num_given
        self._num_given += 1
        with suppress(OSError):  # it has just died, and is found to have when its answer is waited for
            worker.connection.send(self._jobs[worker.number])
        self._busy.append(worker)
        if self._interrupt.requested:  # since it was decided that there is one more
            _hand_on(worker)

    def _collect(self) -> None:
        """Waits for answers; who gave one gets the next job."""
        ready = wait([worker.connection for worker in self._busy])
        for worker in [worker for worker in self._busy if worker.connection in ready]:
            has_more = self._num_given < len(self._jobs) and not self._interrupt.requested
            try:
                self._finished[worker.number] = Finished(worker.number, *worker.connection.recv())
                self._busy.remove(worker)
            except EOFError:
                self._busy.remove(worker)
                exit_code = _dismiss(worker)
                told = None if self._interrupt.requested else exit_code
                self._finished[worker.number] = Finished(worker.number, None, exit_code=told)
                if has_more:
                    self._start()
                continue
            if has_more:
                self._give_job(worker)
            else:
                _dismiss(worker)

    def _interrupt_busy(self) -> None:
        for worker in self._busy:
            _hand_on(worker)


def _hand_on(worker: _Worker) -> None:
    if worker.process.is_alive() and worker.process.pid is not None:
        os.kill(worker.process.pid, HANDED_ON)


@contextmanager
def _masked(how: int, signals: set[int]) -> Iterator[None]:
    """Blocks or unblocks the signals inside; a process that is started there keeps it so."""
    before = signal.pthread_sigmask(how, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _dismiss(worker: _Worker) -> int | None:
    """Closes the connection, which ends the process; returns its exit code."""
    worker.connection.close()
    worker.process.join()
    return worker.process.exitcode


def _serve(run: Callable[[Job], Answer], connection: Connection, inherited: Sequence[Connection]) -> None:
    """What a process does: jobs, until nobody sends any more.

    Ctrl-C in a terminal reaches all processes at once, so SIGINT stays blocked, as it was at the start. The parent
    hands it on by another signal, which waits while there is no job.
    """
    for other in inherited:  # kept open, they would hide from their owners that the parent has gone
        other.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(HANDED_ON, _interrupt)
    try:
        while True:
            job = connection.recv()
            with (
                redirect_stdout(io.StringIO()) as out,
                redirect_stderr(io.StringIO()) as err,
                _masked(signal.SIG_UNBLOCK, {HANDED_ON}),
            ):
                answer, error = _attempt(run, job)
            connection.send((answer, out.getvalue(), err.getvalue(), error))
    except (EOFError, ConnectionError, KeyboardInterrupt):  # the parent has closed the connection, or gone
        return


def _attempt(run: Callable[[Job], Answer], job: Job) -> tuple[Answer | None, Exception | None]:
    try:
        return run(job), None
    except Exception as error:
        return None, error


def _interrupt(number: int, frame: FrameType | None) -> None:
    """As if SIGINT had come; what there is to say of it the parent has said."""
    handler = signal.getsignal(signal.SIGINT)
    with redirect_stderr(io.StringIO()):
        if callable(handler):
            handler(signal.SIGINT, frame)
