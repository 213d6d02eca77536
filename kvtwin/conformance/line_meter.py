"""Counts the lines of Python that a call executes, and ends one that does not end by itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

AnswerT = TypeVar("AnswerT")
MOST_LINES_A_CALL = 50_000  # of a policy that is asked about a dozen blocks or requests


class Endless(BaseException):
    """A call executed more lines than it may. No Exception: code that catches those must not go on."""


class LineMeter:
    """`num_lines` of all calls together; one call alone may execute `most_lines`.

    Where a debugger or a coverage tool traces already, it is left in place, and nothing is counted.
    """

    def __init__(self, most_lines: int) -> None:
        self.num_lines = 0
        self._most_lines = most_lines
        self._limit = 0

    @property
    def counts(self) -> bool:
        return sys.gettrace() is None

    def call(self, function: Callable[..., AnswerT], *args: Any) -> AnswerT:
        """What the function returns. Raises Endless, or what the function raises."""
        if not self.counts:
            return function(*args)
        self._limit = self.num_lines + self._most_lines
        sys.settrace(self._trace)
        try:
            return function(*args)
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.num_lines += 1
            if self.num_lines > self._limit:
                raise Endless
        return self._trace
