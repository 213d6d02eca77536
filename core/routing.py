"""Which replica serves a request: what a router is told, what it sees, what it answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from core.errors import InputError
from core.interfaces import Policy

if TYPE_CHECKING:
    from core.request import Request


class ReplicaView(Protocol):
    """One replica as a router may see it: read-only, as single steps would have it at this moment.

    `num_outstanding`, `num_waiting` and `num_running` cost next to nothing. What is asked of blocks first has the
    replica catch up with the steps that have begun.
    """

    @property
    def num_outstanding(self) -> int:
        """Requests that were routed here and are not done."""
        ...

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_blocks(self) -> int | None:
        """Of its pool; None: unbounded."""
        ...

    @property
    def num_referenced_blocks(self) -> int:
        """Blocks that its running requests hold."""
        ...

    def num_cached_tokens(self, request: Request) -> int:
        """What the request would find in its prefix cache now. Leaves no trace; O(blocks found)."""
        ...


class RoutingPolicy(Policy):
    """Sends each request to one of the replicas, all of which are alike. Asked once, when the request arrives.

    Inputs of one instant are routed one after another, before any replica plans; steps that end at that very instant
    have not ended yet. What such an end sets free (the next turn of a session, without think time) is routed after all
    of them.
    """

    @abstractmethod
    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        """The number of the replica, from 0."""

    def on_done(self, request: Request, replica: int) -> None:
        """`request`, which was routed to `replica`, has ended, however it did."""


class StaticRouting(RoutingPolicy):
    """Goes by the request alone. Its replicas have nothing to do with one another, and may be simulated apart.

    `placed_by` is the name of the one attribute of a request that `place` looks at, `request_id`, `session_id` or
    `tenant`, where it is one of these alone: then it is asked once for each value, with a request that has no more.
    """

    placed_by: str | None = None

    @abstractmethod
    def place(self, request: Request, num_replicas: int) -> int:
        """The number of the replica, from 0. The same request always has the same answer."""

    def route(self, request: Request, replicas: Sequence[ReplicaView]) -> int:
        return self.place(request, len(replicas))


def no_replica(who: str, answer: object, num_replicas: int) -> InputError:
    """What to raise for an answer that names none."""
    return InputError(f"routing: {who} answered {answer!r}; expected a replica, 0 to {num_replicas - 1}")
