"""The smallest victim."""

from __future__ import annotations

from typing import Any

from core.request import Request
from policies.preemption.ranked import Ranked, num_kv_tokens


class LeastKV(Ranked):
    """Fewest tokens with KV: the cheapest to compute again, though more of them may have to go. O(running)."""

    def rank(self, request: Request) -> Any:
        return -num_kv_tokens(request)
