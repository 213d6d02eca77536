"""2Q: a FIFO queue for what came once, LRU for what came back."""

from __future__ import annotations

from collections import OrderedDict

from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.shares import Ghosts, share_blocks


class TwoQ(ContentEviction):
    """New content enters a FIFO queue (A1in). What is evicted from there is remembered (A1out), and enters an LRU list
    (Am) should it come back. While the queue has more than its share its oldest block goes, else the list's.

    Johnson and Shasha, VLDB 1994, the full version: Kin a quarter of the pool, Kout ghosts for half of it; Am has what
    A1in leaves. Hits in A1in change nothing. O(1) each. A referenced block at the queue's head leaves it, and joins its
    end when it is released.
    """

    def __init__(self, env: PolicyEnv, in_ratio: float = 0.25, out_ratio: float = 0.5) -> None:
        super().__init__(env)
        self._in_share = share_blocks(env, "in_ratio", in_ratio)
        self._ghosts = Ghosts(share_blocks(env, "out_ratio", out_ratio))
        self._came_back: dict[Block, bool] = {}
        self._num_in = 0  # resident, referenced ones included
        self._in: OrderedDict[Block, None] = OrderedDict()  # oldest first
        self._main: OrderedDict[Block, None] = OrderedDict()  # resting ones only, released longest ago first
        self._incoming: BlockKey | None = None

    def enter(self, block: Block) -> None:
        self._came_back[block] = block.key in self._ghosts
        if self._came_back[block]:
            self._ghosts.discard(block.key)
        else:
            self._num_in += 1
            self._in[block] = None

    def wake(self, block: Block) -> None:
        self._main.pop(block, None)

    def rest(self, block: Block) -> None:
        if self._came_back[block]:
            self._main[block] = None
        else:
            self._in.setdefault(block)

    def choose(self, incoming: BlockKey | None) -> Block:
        self._incoming = incoming
        if self._num_in > self._in_share or not self._main:
            while self._in:
                block, _ = self._in.popitem(last=False)
                if block.ref_count == 0:
                    return block
        return self._main.popitem(last=False)[0]

    def evicted(self, block: Block) -> None:
        if not self._came_back[block]:
            self._ghosts.add(block.key, self._incoming)
        self._forget(block)

    def dropped(self, block: Block) -> None:
        self._in.pop(block, None)
        self._forget(block)

    def _forget(self, block: Block) -> None:
        self._num_in -= not self._came_back.pop(block)
