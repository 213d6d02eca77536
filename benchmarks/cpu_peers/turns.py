"""An engine in a process of its own, advanced a few steps at a time. Needs nothing but Python: peers import it.

Commands are JSON lines on standard input. {"batch", "prompt", "steps"} starts a case: so many requests of so many
prompt tokens, one step that computes the prompts and `steps` that decode. The first step is run at once; then {"go": n}
runs n further ones. Each command is answered by a line: seconds of wall clock and of CPU time (all threads) of every
step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple


class Case(NamedTuple):
    batch: int
    prompt: int
    steps: int


class Turns:
    """The peer's side. Whatever libraries print goes to standard error."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._times: list[tuple[float, float]] = []
        self._num_left = self._num_asked = 0
        self._mark = (0.0, 0.0)

    def cases(self, about: str) -> Iterator[Case]:
        """`about`: what answers here, with its version."""
        self._answer(about)
        for line in sys.stdin:
            case = Case(**json.loads(line))
            self._num_asked, self._num_left = 1, 1 + case.steps
            yield case

    def begin(self) -> None:
        """To be called when the first step begins."""
        self._mark = (time.perf_counter(), time.process_time())

    def step_done(self) -> None:
        """To be called after every step; waits until further ones are wanted."""
        now = (time.perf_counter(), time.process_time())
        self._times.append((now[0] - self._mark[0], now[1] - self._mark[1]))
        self._num_left -= 1
        if len(self._times) == self._num_asked:
            self._answer(self._times)
            self._times = []
            if self._num_left:
                self._num_asked = json.loads(sys.stdin.readline())["go"]
        self.begin()

    def _answer(self, message: object) -> None:
        self._answers.write(json.dumps(message) + "\n")
