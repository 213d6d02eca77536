"""LIRS: keeps what comes back soon, by the distance between its last two uses."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from core.interfaces import Block, BlockKey, PolicyEnv
from policies.eviction.content_eviction import ContentEviction
from policies.eviction.shares import UNBOUNDED, share_blocks


@dataclass(slots=True, eq=False)
class _History:
    """What is known of a content: of low inter-reference recency (LIR) or high (HIR), resident or a ghost."""

    key: BlockKey
    block: Block | None
    is_lir: bool = False


class LIRS(ContentEviction):
    """A stack of the latest uses, down to the LIR content that was used longest ago, ghosts included; and a queue of
    the few resident HIR blocks, whose first one goes.

    HIR content that is used while it is in the stack comes back sooner than the stack's bottom: the two change roles.
    Jiang and Zhang, SIGMETRICS 2002, with HIR blocks 1 % of the pool. The stack holds at most twice the pool, then the
    oldest ghosts fall out (the paper sets no bound). `demote_on_queue_hit` is a rule of libCacheSim's that the paper
    does not have: a hit on a HIR block outside the stack turns the stack's bottom into HIR, too, where the LIR blocks
    are complete. Amortised O(1) each.

    Referenced blocks are not in the queue. Where it is empty, the LIR block that was released longest ago goes.
    """

    def __init__(self, env: PolicyEnv, hir_ratio: float = 0.01, demote_on_queue_hit: bool = False) -> None:
        super().__init__(env)
        num_hir = share_blocks(env, "hir_ratio", hir_ratio)
        self._most = UNBOUNDED if env.num_blocks is None else env.num_blocks
        self._most_lir = UNBOUNDED if env.num_blocks is None else env.num_blocks - num_hir
        self._demote_on_queue_hit = demote_on_queue_hit
        self._num_lir = 0
        self._num_queue_hits = 0  # for which nothing has been demoted yet
        self._history: dict[Block, _History] = {}
        self._ghosts: OrderedDict[BlockKey, _History] = OrderedDict()  # all in the stack; evicted longest ago first
        self._stack: OrderedDict[_History, None] = OrderedDict()  # bottom first
        self._queue: OrderedDict[Block, None] = OrderedDict()  # resting HIR blocks
        self._resting_lir: OrderedDict[Block, None] = OrderedDict()  # released longest ago first

    # ---- a content's life -----------------------------------------------------------------------------------------

    def enter(self, block: Block) -> None:
        assert block.key is not None
        ghost = self._ghosts.pop(block.key, None)
        history = self._history[block] = ghost or _History(block.key, block)
        history.block = block
        self._to_top(history)
        if ghost is not None or self._num_lir < self._most_lir:
            self._promote(history)
        while len(self._stack) > 2 * self._most and self._ghosts:
            _, oldest = self._ghosts.popitem(last=False)
            del self._stack[oldest]

    def hit(self, block: Block) -> None:
        history = self._history[block]
        was_in_stack = history in self._stack
        self._to_top(history)
        if history.is_lir:
            self._prune()
        elif was_in_stack:
            self._promote(history)
        else:
            self._num_queue_hits += self._demote_on_queue_hit

    def wake(self, block: Block) -> None:
        self._queue.pop(block, None)
        self._resting_lir.pop(block, None)

    def rest(self, block: Block) -> None:
        (self._resting_lir if self._history[block].is_lir else self._queue)[block] = None
        while self._num_queue_hits:  # the block hit goes into the queue before the one demoted
            self._num_queue_hits -= 1
            if self._num_lir >= self._most_lir:
                self._demote_bottom()

    def choose(self, incoming: BlockKey | None) -> Block:
        return (self._queue or self._resting_lir).popitem(last=False)[0]

    def evicted(self, block: Block) -> None:
        history = self._history.pop(block)
        self._num_lir -= history.is_lir
        history.is_lir = False
        history.block = None
        if history in self._stack:
            self._remember(history)
        self._prune()

    def dropped(self, block: Block) -> None:
        history = self._history.pop(block)
        self._num_lir -= history.is_lir
        self._stack.pop(history, None)
        self._prune()

    # ---- stack and ghosts -----------------------------------------------------------------------------------------

    def _to_top(self, history: _History) -> None:
        self._stack[history] = None
        self._stack.move_to_end(history)

    def _promote(self, history: _History) -> None:
        history.is_lir = True
        self._num_lir += 1
        if self._num_lir > self._most_lir:
            self._demote_bottom()

    def _demote_bottom(self) -> None:
        """The bottom of the stack, which is LIR, becomes HIR, last in the queue."""
        self._prune()
        if not self._stack:
            return
        bottom, _ = self._stack.popitem(last=False)
        block = bottom.block
        assert block is not None
        bottom.is_lir = False
        self._num_lir -= 1
        if block in self._resting_lir:
            del self._resting_lir[block]
            self._queue[block] = None
        self._prune()

    def _prune(self) -> None:
        """Takes HIR content off the bottom: whatever comes back from there is later than the last LIR content."""
        while self._stack:
            bottom = next(iter(self._stack))
            if bottom.is_lir:
                return
            del self._stack[bottom]
            if bottom.block is None:
                del self._ghosts[bottom.key]

    def _remember(self, ghost: _History) -> None:
        equal = self._ghosts.pop(ghost.key, None)  # equal content may have left from another block
        if equal is not None:
            del self._stack[equal]
        self._ghosts[ghost.key] = ghost
