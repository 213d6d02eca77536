"""Which replica serves a request: what a router is told, what it sees, what it answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from core.errors import InputError
from core.interfaces import Policy

if TYPE_CHECKING:
    from core.request import Request


class ReplicaView(Protocol):
    """One replica as a router may see it: read-only, as single steps would have it at this moment.

    `num_outstanding`, `num_waiting` and `num_running` cost next to nothing. What is asked of blocks first has the
    replica catch up with the steps that have begun, unless it is plain without.
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

    def has_first_token(self, request: Request) -> bool:
        """Whether a request that was routed here has its first token by now."""
        ...


class Replicas(list[ReplicaView]):
    """The replicas by number; and what is asked of all of them at once, which in a run costs much less than one by one.

    A list of views, to be read only: a policy may as well ask each. This one does, and serves a test's own views.
    """

    def num_outstanding(self) -> list[int]:
        """Of each replica, to be read only. In a run this is at hand."""
        return [replica.num_outstanding for replica in self]

    def num_cached_tokens(self, request: Request) -> list[int]:
        """Of each replica. In a run those are passed over that have not even its beginning."""
        return [replica.num_cached_tokens(request) for replica in self]

    def with_fewest_referenced_blocks(self) -> list[int]:
        """The numbers of those whose running requests hold the fewest blocks. In a run only those catch up that may."""
        num_referenced = [replica.num_referenced_blocks for replica in self]
        fewest = min(num_referenced)
        return [number for number, num in enumerate(num_referenced) if num == fewest]


class RoutingPolicy(Policy):
    """Sends each request to one of the replicas, all of which are alike. Asked once, when the request arrives.

    Inputs of one instant are routed one after another, before any replica plans; steps that end at that very instant
    have not ended yet. What such an end sets free (the next turn of a session, without think time) is routed after all
    of them.

    A policy that does not look again at requests that it was given before (at their first tokens, say), until it is
    told of their ends, says so by `looks_back`, in the very class: then replicas are left alone for longer.
    """

    looks_back: ClassVar[bool] = True

    @abstractmethod
    def route(self, request: Request, replicas: Replicas) -> int:
        """The number of the replica, from 0. `replicas` may be taken for just a sequence of `ReplicaView`."""

    def on_done(self, request: Request, replica: int) -> None:
        """`request`, which was routed to `replica`, has ended, however it did. Told no later than before the next
        input is routed; those of one instant in order of the replicas, whom the admission policy turns away last.
        """


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
