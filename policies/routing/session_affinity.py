"""Sessions stay where they began."""

from __future__ import annotations

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.least import first_least
from core.request import Request
from core.routing import Replicas, RoutingPolicy


class SessionAffinity(RoutingPolicy):
    """A session begins at the replica with the fewest requests that are not done, and stays there.

    If that one has more than `max_excess` requests more than the least loaded, the session moves to the latter; null:
    it never moves. Remembers every session of the run. O(1) a turn without `max_excess`, else O(replicas). Source:
    sticky sessions of load balancers (HAProxy's stick tables); the bound is that of SGLang's router.
    """

    looks_back = False

    def __init__(self, env: PolicyEnv, max_excess: int | None = None) -> None:
        super().__init__(env)
        if max_excess is not None and (not isinstance(max_excess, int) or max_excess < 0):
            raise InputError(f"routing.max_excess={max_excess}: expected a whole number from 0 on, or null")
        self._max_excess = max_excess
        self._home: dict[int, int] = {}

    def route(self, request: Request, replicas: Replicas) -> int:
        home = self._home.get(request.session_id)
        if home is not None and self._max_excess is None:
            return home
        loads = replicas.num_outstanding()
        least = first_least(loads)
        if home is None or (self._max_excess is not None and loads[home] > loads[least] + self._max_excess):
            home = self._home[request.session_id] = least
        return home
