"""Sticky by hashing: what belongs together meets again at one replica, and nobody needs to remember anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from core.errors import InputError
from core.interfaces import PolicyEnv
from core.request import Request
from core.routing import StaticRouting
from policies.routing.spreading import spread


class Hash(StaticRouting):
    """The replica is the hash of a request's session, of its tenant, or of the beginning of its prompt.

    `by`: session, tenant or prefix: the content of the prompt's first `prefix_blocks` blocks (fewer, where the prompt
    is shorter; a prompt without one full block is on its own). The number of replicas is fixed in a run, so this is the
    balance of consistent hashing (Karger et al., STOC'97) without its ring; Envoy's and Kubernetes' session affinity.
    """

    def __init__(self, env: PolicyEnv, by: str = "session", prefix_blocks: int = 4) -> None:
        super().__init__(env)
        if by not in _KEYS:
            raise InputError(f"routing.by={by}: expected one of {', '.join(_KEYS)}")
        if not isinstance(prefix_blocks, int) or prefix_blocks < 1:
            raise InputError(f"routing.prefix_blocks={prefix_blocks}: expected a whole number of at least 1")
        self._key = _KEYS[by]
        self.placed_by = _PLACED_BY.get(by)
        self._prefix_blocks = prefix_blocks

    def place(self, request: Request, num_replicas: int) -> int:
        return spread(self.env.seed, self._key(self, request)) % num_replicas

    def _session(self, request: Request) -> Any:
        return request.session_id

    def _tenant(self, request: Request) -> Any:
        return request.tenant

    def _prefix(self, request: Request) -> Any:
        """The key of a block names all that comes before it, too."""
        num_full = request.num_prompt_tokens // self.env.block_size_tokens
        if not num_full:
            return "request", request.request_id
        return request.keys.key(min(num_full, self._prefix_blocks) - 1)


_KEYS: Mapping[str, Callable[[Hash, Request], Any]] = {
    "session": Hash._session,
    "tenant": Hash._tenant,
    "prefix": Hash._prefix,
}
_PLACED_BY = {"session": "session_id", "tenant": "tenant"}
