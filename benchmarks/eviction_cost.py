"""Does the cost of an eviction grow with the pool? `python benchmarks/eviction_cost.py [NAME ...]`

Every policy of `conf/eviction`, at 1,000 to 1,000,000 resident blocks of which none, half or 95 % are referenced. One
cycle: a victim goes, new content comes in and rests, a resting block is hit and referenced, and another comes to rest
in its place. Told are the lines of Python that the policy runs in a cycle, which no machine changes, and CPU time as a
multiple of LRU's on as many blocks, for what lines do not show: heaps, which are known to take log n, and memory that
is farther away. Measured once hands have come round: each referenced block that they meet costs them one step, once.
Fails where lines grow by more than log n.
"""

from __future__ import annotations

import gc
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from core.interfaces import Block, BlockKey, EvictionPolicy, PolicyEnv
from kvtwin.binding import bind_policy
from kvtwin.composition import OWN, compose_config
from kvtwin.naming import options_of

SIZES = (1_000, 10_000, 100_000, 1_000_000)
PINNED = (0.0, 0.5, 0.95)
NUM_WARM, MOST_WARM, NUM_COUNTED, NUM_TIMED = 2_000, 50_000, 1_000, 3_000
ALLOWED = math.log(SIZES[-1]) / math.log(SIZES[0])
SCANNING = ("flop_aware",)  # looks at every candidate, and says so: two sizes are enough to see it
RESULT = Path(__file__).parent / "results" / "eviction_cost.md"


class Prophecy:
    """Some order in which all content is used again, for clairvoyant policies."""

    def next_use(self, key: BlockKey) -> int | None:
        return hash(key) * 2_654_435_761 % (1 << 32)


class Crowd:
    """A policy, its resident blocks, and cycles of evictions, hits and releases."""

    def __init__(self, make: Callable[[PolicyEnv], EvictionPolicy], num_blocks: int) -> None:
        self.policy = make(PolicyEnv(lambda: 0, num_blocks, 16, seed=1, future=Prophecy()))
        self._draw = random.Random(num_blocks)
        self._num_contents = 0
        self._resting: list[Block] = []
        self._place: dict[Block, int] = {}
        self._pinned: list[Block] = []
        for number in range(num_blocks):
            self._insert(Block(number))

    def pin(self, num_blocks: int) -> None:
        """Until so many are referenced."""
        while len(self._pinned) < num_blocks:
            self._pinned.append(self._acquire())

    def _insert(self, block: Block) -> None:
        self._num_contents += 1
        block.key, block.ref_count = self._num_contents, 1
        self.policy.on_insert([block])
        self._release(block)

    def _release(self, block: Block) -> None:
        block.ref_count = 0
        self.policy.on_release([block])
        self._place[block] = len(self._resting)
        self._resting.append(block)

    def _acquire(self) -> Block:
        """Hits a random resting block."""
        block = self._resting[self._draw.randrange(len(self._resting))]
        self.policy.on_hit([block], False)
        block.ref_count = 1
        self.policy.on_acquire([block])
        self._leave(block)
        return block

    def _leave(self, block: Block) -> None:
        last = self._resting.pop()
        place = self._place.pop(block)
        if last is not block:
            self._resting[place] = last
            self._place[last] = place

    def cycles(self, number: int) -> None:
        pinned, draw = self._pinned, self._draw
        for _ in range(number):
            victim = self.policy.pop_victim(self._num_contents + 1)
            self.policy.on_evict(victim)
            self._leave(victim)
            self._insert(victim)
            block = self._acquire()
            if pinned:
                place = draw.randrange(len(pinned))
                block, pinned[place] = pinned[place], block
            self._release(block)


def lines_of(crowd: Crowd, number: int) -> float:
    """Lines of the policies' own code that a cycle runs."""
    num_lines = 0

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return local

    def traced(frame: FrameType, event: str, arg: Any) -> Any:
        return local if "/policies/eviction/" in frame.f_code.co_filename or _is_base(frame) else None

    sys.settrace(traced)
    try:
        crowd.cycles(number)
    finally:
        sys.settrace(None)
    return num_lines / number


def _is_base(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith("core/interfaces.py")


def cpu_us_of(crowd: Crowd, number: int) -> float:
    """CPU microseconds of a cycle, the driver's own included; the better of three."""
    spans = []
    for _ in range(3):
        start = time.process_time()
        crowd.cycles(number)
        spans.append(time.process_time() - start)
    return 1e6 * min(spans) / number


def sizes_of(name: str) -> tuple[int, ...]:
    return SIZES[:2] if name in SCANNING else SIZES


def measured(name: str) -> dict[tuple[int, float], tuple[float, float]]:
    """(lines, CPU microseconds) by size and share referenced."""
    make = bind_policy(compose_config("sim", [f"eviction={name}"]).eviction, "eviction")
    found = {}
    for size in sizes_of(name):
        crowd = Crowd(make, size)
        for pinned_ratio in PINNED:
            crowd.pin(int(size * pinned_ratio))
            crowd.cycles(NUM_WARM + (min(MOST_WARM, int(size * (1 - pinned_ratio))) if pinned_ratio else 0))
            found[size, pinned_ratio] = (lines_of(crowd, NUM_COUNTED), cpu_us_of(crowd, NUM_TIMED))
    print(name, file=sys.stderr)
    return found


def table(names: list[str], lru: dict[tuple[int, float], tuple[float, float]]) -> Iterator[str]:
    sides = [f"{pinned:.0%}: {what}" for pinned in PINNED for what in ("lines", "CPU / LRU's")]
    yield f"| policy | {' | '.join(sides)} | grows |"
    yield f"|---|{'---|' * (len(sides) + 1)}"
    for name in names:
        found = lru if name == "lru" else measured(name)
        gc.collect()
        cells, growth = [], 0.0
        for pinned in PINNED:
            lines = [found[size, pinned][0] for size in sizes_of(name)]
            ratios = [found[size, pinned][1] / lru[size, pinned][1] for size in sizes_of(name)]
            cells += [" ".join(f"{value:.0f}" for value in lines), " ".join(f"{value:.1f}" for value in ratios)]
            growth = max(growth, lines[-1] / lines[0])
        yield f"| {name} | {' | '.join(cells)} | {verdict(name, growth)} |"


def verdict(name: str, growth: float) -> str:
    if name in SCANNING:
        return "scans, as named"
    return "no faster than log n" if growth <= ALLOWED else f"TOO FAST: {growth:.1f} times"


def main() -> int:
    gc.disable()  # it walks all blocks time and again: a cost of the benchmark's, not of the policies'
    names = sys.argv[1:] or [name for name in options_of("eviction") if name != OWN]
    lines = list(table(names, measured("lru")))
    sizes = ", ".join(f"{size:,}" for size in SIZES)
    text = "\n".join(
        [
            f"One eviction, insertion, hit and release, at {sizes} resident blocks, 0, 50 or 95 % of them referenced",
            "",
            *lines,
            "",
            f"Lines may grow {ALLOWED:.1f} times from the first size to the last, as log n. The machine was shared.",
            "`hyperbolic` looks at 64 of the blocks; with `exact=true`, for comparison, it looks at all of them: O(n).",
            "",
        ]
    )
    print(text)
    if not sys.argv[1:]:
        RESULT.write_text(text)
    return int("TOO FAST" in text)


if __name__ == "__main__":
    sys.exit(main())
