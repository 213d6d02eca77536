"""How many block lives a CPU-second the pool manages under LRU, in plain Python. `python benchmarks/block_pool.py`

Two cycles on a pool of 10,000 blocks in chains of 64: a cached chain is acquired and released; and a new chain is taken
(which evicts an old one), registered and released. Median of five, CPU time of this process.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median

from core.block_pool import BlockPool
from core.decision_log import DecisionLog
from core.interfaces import PolicyEnv
from core.prefix_index import HashIndex
from policies.eviction.lru import LRU

NUM_BLOCKS, CHAIN, NUM_CYCLES, NUM_RUNS = 10_000, 64, 4_000, 5
ASKED_PER_CPU_S = {"acquire and release": 1_500_000, "take, evict, register, release": 600_000}
RESULT = Path(__file__).parent / "results" / "block_pool.md"


def full_pool() -> tuple[BlockPool, list[list[int]]]:
    """A pool whose blocks are all cached, and the keys of each chain."""
    pool = BlockPool(NUM_BLOCKS, LRU(PolicyEnv(lambda: 0, NUM_BLOCKS, 16)), DecisionLog(), HashIndex())
    chains = [list(range(first, first + CHAIN)) for first in range(0, NUM_BLOCKS - CHAIN + 1, CHAIN)]
    for keys in chains:
        insert(pool, keys)
    return pool, chains


def insert(pool: BlockPool, keys: list[int]) -> None:
    blocks = pool.take(len(keys), 0, keys)
    pool.register(blocks, keys, 0)
    pool.release(blocks[::-1], 0)


def acquire_and_release() -> None:
    pool, chains = full_pool()
    for cycle in range(NUM_CYCLES):
        blocks = pool.index.leading(chains[cycle * 7 % len(chains)])
        pool.adopt(blocks, 0, readmission=False)
        pool.release(blocks[::-1], 0)


def take_and_evict() -> None:
    pool, _ = full_pool()
    for cycle in range(NUM_CYCLES):
        first = NUM_BLOCKS * (cycle + 1)
        insert(pool, list(range(first, first + CHAIN)))


def blocks_per_cpu_s(run: Callable[[], None]) -> float:
    rates = []
    for _ in range(NUM_RUNS):
        start_s = time.process_time()
        run()
        rates.append(CHAIN * NUM_CYCLES / (time.process_time() - start_s))
    return median(rates)


def main() -> None:
    ArgumentParser(description=__doc__).parse_args()
    lines = [
        "Blocks a CPU-second through the pool under LRU; filling the pool first is counted against it",
        "",
        "| cycle | blocks per CPU-s | asked |",
        "|---|---|---|",
    ]
    for (name, asked), run in zip(ASKED_PER_CPU_S.items(), (acquire_and_release, take_and_evict), strict=True):
        lines.append(f"| {name} | {blocks_per_cpu_s(run) / 1e6:.2f} M | {asked / 1e6:.1f} M |")
    text = "\n".join(lines) + "\n"
    print(text)
    RESULT.write_text(text)


if __name__ == "__main__":
    main()
