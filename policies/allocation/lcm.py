"""Small pages of each KV group's own size, carved from large pages of their least common multiple (Jenga, SOSP'25)."""

from __future__ import annotations

from core.large_pages import LargePageAllocation
from core.request import Request


class LCM(LargePageAllocation):
    """Blocks on demand, as `paged`, without padding: all layers of one window are a group, whatever their number.

    A large page has room for as many layers as the least common multiple of the groups' (Gemma 3 27B: 10 and 52 layers,
    260 a page), and serves one group until it is all free again. Small pages come from large pages that the request
    opened itself, then from any partly used page of the group, then from a free one (Jenga, arXiv 2503.18292, gives a
    request's small pages one large page where it can, so that they come free together; its exact order was not read).

    Cached blocks stay in their small pages. A large page of which nobody holds a part counts as free, for its content
    can be evicted. Evicted is whom the eviction policy names, of whatever group, until there is room: its place serves
    its own group, and any group once the whole page is empty. Requests of several samples are turned away.
    """

    is_on_demand = True

    def target_blocks(self, request: Request, num_tokens: int) -> int:
        return -(-num_tokens // self.env.block_size_tokens)

    def why_unservable(self, request: Request) -> str:
        if request.num_samples > 1:
            return f"wants {request.num_samples} samples, whose blocks are not copied on write under allocation LCM"
        return ""
