"""Where requests come from: the inputs of a run in order of time, the same for simulator and engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from core.request import Request


class InputKind(Enum):
    ARRIVE = "arrive"
    CANCEL = "cancel"


class Input(NamedTuple):
    """Something that enters the control plane at `time_ps`."""

    time_ps: int
    kind: InputKind
    request: Request


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestSource(ABC):
    """Hands out arrivals and cancellations in order of time. More of them may become known as requests get done.

    `hears_of_ends`: `on_done` matters to it. `follows_at_once`: what follows may lie at the very instant at which a
    request is done.
    """

    hears_of_ends: bool = True
    follows_at_once: bool = True

    @abstractmethod
    def next_ps(self) -> int | None:
        """Time of the earliest input that is known and not yet handed out."""

    @abstractmethod
    def pop_due(self, now_ps: int) -> Iterator[Input]:
        """All inputs up to and including `now_ps`; an arrival makes its Request here, not before."""

    def pop_arrival(self, until_ps: int) -> Request | None:
        """The earliest input, if that is an arrival no later than `until_ps`: as `pop_due` would hand it out. None: it
        is none, or this source does not tell one by one.
        """
        return None

    @abstractmethod
    def on_done(self, request: Request, now_ps: int) -> None:
        """`request` ended: what waited for it (a session's next turn, a client's next request) becomes known."""
