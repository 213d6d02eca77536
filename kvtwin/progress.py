"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_INTERVAL_S = 0.1  # drawing takes longer than a simulated step


class Progress(Protocol):
    def show(self, num_done: int) -> None: ...


class Silent:
    """Shows nothing."""

    def show(self, num_done: int) -> None:
        pass


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Progress]:
    """Shows how many of `total` requests are done, on standard error; silent where that is no terminal."""
    if not sys.stderr.isatty():
        yield Silent()
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
