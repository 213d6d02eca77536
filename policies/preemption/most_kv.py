"""The largest victim."""

from __future__ import annotations

from typing import Any

from core.request import Request
from policies.preemption.ranked import Ranked, num_kv_tokens


class MostKV(Ranked):
    """Most tokens with KV: frees most at once. O(running).

    Two large requests can take the memory from each other for ever: leave a bound on `max_preemptions`.
    """

    def rank(self, request: Request) -> Any:
        return num_kv_tokens(request)
