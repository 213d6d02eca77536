"""S3-FIFO: three queues, of which a small one sorts out what is used once."""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from core.batch_eviction import Ints
from core.errors import InputError
from core.interfaces import Block, BlockKey, PolicyEnv
from core.line import Line
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.s3fifo_batches import MOST_USES, S3FIFOBatches
from policies.eviction.shares import Ghosts, share_blocks

_IN_MAIN, _IS_QUEUED = 4, 8  # marks beside the uses


@mypyc_attr(allow_interpreted_subclasses=True)
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
        self._most_ghosts = share_blocks(env, "ghost_ratio", ghost_ratio)
        self._ghosts = Ghosts(self._most_ghosts)
        self._threshold = threshold
        self._is_warming_up = warmup
        self._num_small = 0  # resident, referenced ones included
        self._small: Line[Block] = Line()
        self._main: Line[Block] = Line()
        self._incoming: BlockKey | None = None

    def in_batches(self, contents: Ints) -> S3FIFOBatches:
        return S3FIFOBatches(contents, self._small_share, self._most_ghosts, self._threshold, self._is_warming_up)

    def enter(self, block: Block) -> None:
        is_early = self._is_warming_up and self._num_small >= self._small_share
        if is_early or block.key in self._ghosts:
            self._ghosts.discard(block.key)
            self._join_main(block, 0)
        else:
            self._num_small += 1
            self.marks[block.block_id] = _IS_QUEUED
            self._small.append(block)

    def _join_main(self, block: Block, num_uses: int) -> None:
        self.marks[block.block_id] = num_uses | _IN_MAIN | _IS_QUEUED
        self._main.append(block)

    def hit(self, block: Block) -> None:
        mark = self.marks[block.block_id]
        if mark & MOST_USES < MOST_USES:
            self.marks[block.block_id] = mark + 1

    def rest(self, block: Block) -> None:
        mark = self.marks[block.block_id]
        if not mark & _IS_QUEUED:
            self.marks[block.block_id] = mark | _IS_QUEUED
            self._line(mark).append(block)

    def _line(self, mark: int) -> Line[Block]:
        return self._main if mark & _IN_MAIN else self._small

    def choose(self, incoming: BlockKey | None) -> Block:
        self._incoming = incoming
        self._is_warming_up = False
        while True:
            if self._small.length and (self._num_small >= self._small_share or not self._main.length):
                block = self._small.pop()
                uses = self.marks[block.block_id] & MOST_USES
                if uses >= self._threshold:
                    self._num_small -= 1
                    self._join_main(block, 0)
                    continue
            else:
                block = self._main.pop()
                uses = self.marks[block.block_id] & MOST_USES
                if uses:
                    self._join_main(block, uses - 1)
                    continue
            self.marks[block.block_id] &= ~_IS_QUEUED
            if block.ref_count == 0:
                return block

    def evicted(self, block: Block) -> None:
        if not self.marks[block.block_id] & _IN_MAIN:
            self._num_small -= 1
            self._ghosts.add(block.key, self._incoming)

    def dropped(self, block: Block) -> None:
        mark = self.marks[block.block_id]
        if mark & _IS_QUEUED:
            self._line(mark).discard(block)
        if not mark & _IN_MAIN:
            self._num_small -= 1
