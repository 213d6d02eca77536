"""Ctrl-C between steps: an interrupted run stops at a step boundary, so that what it leaves behind is whole."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType


def do_nothing() -> None:
    pass


class DeferredInterrupt:
    """While entered, the first SIGINT only sets `requested`; a second one raises KeyboardInterrupt as usual.

    Who shares the work with others sets what is called for each of the two, and what the first one says comes to its
    end. Does nothing outside the main thread, where signals do not arrive, or where SIGINT has a handler of somebody
    else.
    """

    def __init__(self) -> None:
        self.requested = False
        self.pass_on: Callable[[], None] = do_nothing
        self.stops_after = "this step"
        self._is_installed = False

    def __enter__(self) -> DeferredInterrupt:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            try:
                signal.signal(signal.SIGINT, self._on_signal)
                self._is_installed = True
            except ValueError:  # not the main thread
                pass
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._is_installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.pass_on()
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        print(f"stopping after {self.stops_after}; Ctrl-C again drops what ran", file=sys.stderr)
