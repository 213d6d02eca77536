"""Ends of texts go first, unless they were of use."""

from collections.abc import Sequence

from kvtwin import Block, PolicyEnv, PriorityEviction


class SecondChanceEnds(PriorityEviction):
    """Blocks that nobody has hit go before those that somebody has; of each sort the deepest in its text goes first.

    A beginning serves every text that continues it. `protected_hits` hits make a block worth keeping. Source: this
    example; SLRU's two segments, ordered by depth.
    """

    def __init__(self, env: PolicyEnv, protected_hits: int = 1) -> None:
        super().__init__(env)
        self.protected_hits = protected_hits

    def on_insert(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            block.link = 0  # hits so far

    def on_hit(self, blocks: Sequence[Block], readmission: bool) -> None:
        for block in blocks:
            block.link += 1

    def priority(self, block: Block) -> float:
        if block.key is None:  # released without content: nothing to keep
            return float("-inf")
        is_protected = block.link >= self.protected_hits
        return is_protected * 1e9 - block.position
