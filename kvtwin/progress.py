"""How far a long run is: a progress bar on a terminal, a line now and then elsewhere. On standard error."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_INTERVAL_S = 0.1  # drawing takes longer than a simulated step
_FIRST_LINE_S = 15.0  # what is done by then tells of itself
_LONGEST_WAIT_S = 600.0


class Progress(Protocol):
    def show(self, num_done: int) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, num_done: int) -> None:
        pass


class Lines:
    """A line after a quarter of a minute, then each after as long again as it took so far, ten minutes at most.

    An hour leaves a dozen lines in a log, which never looks dead.
    """

    def __init__(self, label: str, total: int, unit: str) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._start_s = time.perf_counter()
        self._next_s = self._start_s + _FIRST_LINE_S

    def show(self, num_done: int) -> None:
        now_s = time.perf_counter()
        if now_s < self._next_s:
            return
        elapsed_s = now_s - self._start_s
        self._next_s = now_s + min(elapsed_s, _LONGEST_WAIT_S)
        _write(f"{self._label}: {num_done:,} of {self._total:,} {self._unit} done after {elapsed_s:.0f} s")


def stage(text: str) -> None:
    """A line that says what begins now; nothing on a terminal, where a bar says so."""
    if not sys.stderr.isatty() and not _is_read_later():
        _write(text)


def _is_read_later() -> bool:
    """Is standard error collected, to be shown once the job is over?"""
    return isinstance(sys.stderr, io.StringIO)


@contextmanager
def progress_bar(label: str, total: int, unit: str = "requests") -> Iterator[Progress]:
    """Shows how many of `total` are done: a bar that goes when all are, or `Lines` where nobody would see it move."""
    if _is_read_later():
        yield Silent()
        return
    if not sys.stderr.isatty():
        yield Lines(label, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)

        class _Shown:
            _next_s = 0.0

            def show(self, num_done: int) -> None:
                if time.perf_counter() >= self._next_s:
                    bar.update(task, completed=num_done)
                    self._next_s = time.perf_counter() + _INTERVAL_S

        yield _Shown()


def _write(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
