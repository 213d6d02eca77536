"""Work over processes of this machine: each takes the next piece when it is done with one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

Result = TypeVar("Result")
_POLL_S = 0.2


def num_usable_cores() -> int:
    """1 within a process that was itself started to share work."""
    if multiprocessing.parent_process() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(
    work: Callable[[int], Result], num_pieces: int, num_processes: int, is_stopped: Callable[[], bool]
) -> Iterator[tuple[int, Result]]:
    """Yields (piece, work(piece)) as they are done, in any order.

    On Linux the processes are forked: they share what `work` holds. Elsewhere it is pickled. Raises what `work` raised,
    KeyboardInterrupt once `is_stopped` says so, and RuntimeError for a process that was killed.
    """
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    workers: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(min(num_processes, num_pieces)):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(work, theirs), daemon=True)
            worker.start()
            theirs.close()
            workers[ours] = worker
        yield from _handed_out(num_pieces, workers, is_stopped)
    finally:
        for ours, worker in workers.items():
            ours.close()
            worker.terminate()
            worker.join()


def _handed_out(
    num_pieces: int, workers: dict[Connection, BaseProcess], is_stopped: Callable[[], bool]
) -> Iterator[tuple[int, Any]]:
    pieces = iter(range(num_pieces))
    busy: dict[Connection, int] = {}
    for ours, piece in zip(workers, pieces, strict=False):
        ours.send(piece)
        busy[ours] = piece
    while busy:
        if is_stopped():
            raise KeyboardInterrupt
        for ready in wait(list(busy), timeout=_POLL_S):
            assert isinstance(ready, Connection)
            piece = busy.pop(ready)
            result = _received(ready, workers[ready])
            following = next(pieces, None)
            if following is not None:
                ready.send(following)
                busy[ready] = following
            yield piece, result


def _received(ready: Connection, worker: BaseProcess) -> Any:
    try:
        result, error = ready.recv()
    except EOFError:
        worker.join()
        raise RuntimeError(f"a process of the run ended with status {worker.exitcode}: out of memory?") from None
    if error is not None:
        raise error
    return result


def _serve(work: Callable[[int], Any], connection: Connection) -> None:
    """Ctrl-C is the first process's to deal with."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            piece = connection.recv()
            try:
                connection.send((work(piece), None))
            except Exception as error:
                connection.send((None, error))
    except (EOFError, BrokenPipeError):
        return  # nobody wants any more
