"""S3-FIFO: three queues, of which a small one sorts out what is used once."""

from __future__ import annotations

from collections import OrderedDict

from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.shares import Ghosts, share_blocks

MOST_USES = 3  # two bits


class S3FIFO(ContentEviction):
    """New content enters the small queue, and the main queue if it was evicted from the small one of late (a ghost).

    While the small queue has its share, its oldest block goes: to the main queue if it was hit `threshold` times, else
    out. Otherwise the oldest of the main queue goes, which is CLOCK with two bits. Yang et al., FIFO queues are all you
    need for cache eviction, SOSP 2023; shares of the pool, as there: small 10 %, ghosts 90 %. Amortised O(1) each.

    `warmup` is the rule that libCacheSim's S3FIFO added to the paper's: until the first eviction, what finds the small
    queue full enters the main queue. A referenced block at the head of a queue leaves it, and joins its end when it is
    released.
    """

    def __init__(
        self,
        env: PolicyEnv,
        small_ratio: float = 0.1,
        ghost_ratio: float = 0.9,
        threshold: int = 2,
        warmup: bool = False,
    ) -> None:
        super().__init__(env)
        if not 1 <= threshold <= MOST_USES:
            raise InputError(f"eviction.threshold={threshold}: expected a whole number from 1 to {MOST_USES}")
        self._small_share = share_blocks(env, "small_ratio", small_ratio)
        self._ghosts = Ghosts(share_blocks(env, "ghost_ratio", ghost_ratio))
        self._threshold = threshold
        self._is_warming_up = warmup
        self._uses: dict[Block, int] = {}
        self._in_main: dict[Block, bool] = {}
        self._num_small = 0  # resident, referenced ones included
        self._small: OrderedDict[Block, None] = OrderedDict()  # oldest first
        self._main: OrderedDict[Block, None] = OrderedDict()
        self._incoming: BlockKey | None = None

    def enter(self, block: Block) -> None:
        is_early = self._is_warming_up and self._num_small >= self._small_share
        self._uses[block] = 0
        self._in_main[block] = is_early or block.key in self._ghosts
        if self._in_main[block]:
            self._ghosts.discard(block.key)
            self._main[block] = None
        else:
            self._num_small += 1
            self._small[block] = None

    def hit(self, block: Block) -> None:
        if self._uses[block] < MOST_USES:
            self._uses[block] += 1

    def rest(self, block: Block) -> None:
        (self._main if self._in_main[block] else self._small).setdefault(block)

    def choose(self, incoming: BlockKey | None) -> Block:
        self._incoming = incoming
        self._is_warming_up = False
        while True:
            if self._small and (self._num_small >= self._small_share or not self._main):
                block, _ = self._small.popitem(last=False)
                has_stayed = self._uses[block] >= self._threshold
                if has_stayed:
                    self._promote(block)
            else:
                block, _ = self._main.popitem(last=False)
                has_stayed = self._uses[block] > 0
                if has_stayed:
                    self._uses[block] -= 1
                    self._main[block] = None
            if not has_stayed and block.ref_count == 0:
                return block

    def _promote(self, block: Block) -> None:
        self._uses[block] = 0
        self._in_main[block] = True
        self._num_small -= 1
        self._main[block] = None

    def evicted(self, block: Block) -> None:
        if not self._in_main[block]:
            self._ghosts.add(block.key, self._incoming)
        self._forget(block)

    def dropped(self, block: Block) -> None:
        self._small.pop(block, None)
        self._main.pop(block, None)
        self._forget(block)

    def _forget(self, block: Block) -> None:
        del self._uses[block]
        self._num_small -= not self._in_main.pop(block)
