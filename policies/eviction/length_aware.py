"""Length-aware: LFU that gives up the ends of long prompts first."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import InputError
from core.interfaces import Block, PolicyEnv, PriorityEviction

_MOST_POSITIONS = 1 << 40  # more than a prompt has blocks


class LengthAware(PriorityEviction):
    """Evicts the block with the fewest uses since its registration; of equals, the one that stands latest in its text.

    Qin et al., Mooncake, arXiv 2407.00079, in one sentence: LFU that gives priority to blocks that come later in
    requests. That can be read in two ways. `sense=1`: later blocks are evicted first; `sense=-1`: earlier ones, which
    strands what continues them. Then the one released longest ago. O(log n) each.
    """

    def __init__(self, env: PolicyEnv, sense: int = 1) -> None:
        super().__init__(env)
        if sense not in (1, -1):
            raise InputError(f"eviction.sense={sense}: expected 1 (later blocks go first) or -1")
        self._sense = sense

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.link = 1

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            block.link += 1

    def on_evict(self, block: Block) -> None:
        block.link = None

    def priority(self, block: Block) -> float:
        """Uses, then the position, as one exact whole number; the least: released without content."""
        if block.link is None:
            return -_MOST_POSITIONS
        return int(block.link * _MOST_POSITIONS - self._sense * block.position)
