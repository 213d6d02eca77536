"""What an eviction policy costs per block that is handed to it or by it: that may not grow with the pool.

Lines of Python are counted, which is exact; loops inside a single line of C (`min(dict, key=...)`, `list.remove`) show
only in CPU time, which is compared with a wide margin. Both are means over a whole life of the pool, so that work put
off and done in one go counts as what it is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

from core.block_pool import BlockPool
from core.decision_log import NoLog
from core.interfaces import Block, EvictionPolicy
from core.prefix_index import HashIndex
from kvtwin.conformance.eviction_guard import EvictionGuard, guarded
from kvtwin.conformance.fault import NotChecked, PolicyFault
from kvtwin.conformance.line_meter import LineMeter
from kvtwin.conformance.subject import Subject

BOUNDED = "its cost per block is bounded"
CHAIN_BLOCKS = 16
MOST_LINES_GROWTH = 2.0  # over 8 times the blocks; a cost of log n grows by 1.4
MOST_TIME_GROWTH = 6.0  # over 32 times the blocks
TIME_FACTOR = 8  # times as many blocks as where lines are counted
_NO_LIMIT = 1 << 60


class TimeMeter:
    """CPU seconds instead of lines."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        self.limit_s = float("inf")

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        begun = time.thread_time()
        try:
            return function(*args)
        finally:
            self.spent_s += time.thread_time() - begun
            if self.spent_s > self.limit_s:
                raise _TooSlow


class _TooSlow(BaseException):
    """No need to wait for the rest."""


def costs_stay_bounded(subject: Subject) -> None:
    """Raises PolicyFault where the mean cost per block grows with the number of blocks in the pool."""
    few, many = subject.effort.few_blocks, subject.effort.many_blocks
    policy = subject.policy
    if issubclass(policy, EvictionPolicy) and policy.scans_candidates:
        raise NotChecked("it says that it scans its candidates")
    if not LineMeter(_NO_LIMIT).counts:
        raise NotChecked("a debugger or a coverage tool traces this process: lines cannot be counted")
    at_few, at_many = _lines_per_block(subject, few), _lines_per_block(subject, many)
    if at_many > MOST_LINES_GROWTH * at_few:
        raise PolicyFault(
            BOUNDED,
            f"{at_few:.0f} lines of Python per block in a pool of {few:,} blocks, {at_many:.0f} in one of {many:,}",
        )
    if subject.effort.measures_time:
        times_stay_bounded(subject, few, many * TIME_FACTOR)


def _lines_per_block(subject: Subject, num_blocks: int) -> float:
    meter = LineMeter(_NO_LIMIT)
    guard = _live(subject, num_blocks, meter)
    return meter.num_lines / guard.num_handed


def times_stay_bounded(subject: Subject, few: int, many: int) -> None:
    """Raises PolicyFault where a block costs several times as much CPU time in a pool of `many` as in one of `few`."""
    gc.collect()
    gc.disable()
    try:
        at_few = min(_seconds_per_block(subject, few) for _ in range(5))
        at_many = _seconds_per_block(subject, many, MOST_TIME_GROWTH * at_few)
    finally:
        gc.enable()
    if at_many > MOST_TIME_GROWTH * at_few:
        at_least = f"{at_few * 1e6:.1f} µs of CPU time per block in a pool of {few:,} blocks, {at_many * 1e6:.1f} µs"
        raise PolicyFault(BOUNDED, f"{at_least} or more in one of {many:,}: a loop over the pool inside one call")


def _seconds_per_block(subject: Subject, num_blocks: int, most_s: float = float("inf")) -> float:
    """CPU seconds in the policy per block; what lies above `most_s` is not measured to its end."""
    meter = TimeMeter()
    num_handed = _num_handed(num_blocks)
    meter.limit_s = 2 * most_s * num_handed
    try:
        guard = _live(subject, num_blocks, meter)
        return meter.spent_s / guard.num_handed
    except _TooSlow:
        return meter.spent_s / num_handed


def _num_handed(num_blocks: int) -> int:
    """About how many blocks a life hands over: each one is inserted, released, adopted twice and released again."""
    return 6 * num_blocks


def _live(subject: Subject, num_blocks: int, meter: Any) -> EvictionGuard:
    """Fill the pool; use a part of it again; pin nine tenths; replace a quarter of all blocks, one after another."""
    guard = guarded(subject.make(lambda: 0, num_blocks), meter)
    pool = BlockPool(num_blocks, guard, NoLog(), HashIndex())
    chains = [_published(pool, text, CHAIN_BLOCKS) for text in range(num_blocks // CHAIN_BLOCKS)]
    for blocks in chains:
        pool.release(blocks[::-1], 0)
    for blocks in chains[::2]:
        pool.adopt(blocks, 0, readmission=False)
        pool.release(blocks[::-1], 0)
    for text in range(num_blocks // 8):
        pool.release(_published(pool, num_blocks + text, 1), 0)
    kept = [block for block in pool.blocks if block.key is not None and block.ref_count == 0]
    for block in kept[: len(kept) * 9 // 10]:
        pool.adopt([block], 0, readmission=False)
    for text in range(num_blocks // 8):
        pool.release(_published(pool, 3 * num_blocks + text, 1), 0)
    return guard


def _published(pool: BlockPool, text: int, num_blocks: int) -> list[Block]:
    keys = [(text, depth) for depth in range(num_blocks)]
    blocks = pool.take(num_blocks, 0, keys)
    pool.register(blocks, keys, 0)
    return blocks
