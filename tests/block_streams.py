"""Streams of single block references, driven into an eviction policy as the pool would: one access at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from core.foresight import Foresight
from core.interfaces import Block, EvictionPolicy, PolicyEnv

SHARED = Path(__file__).parents[1].parent / "shared"
Build = Callable[[PolicyEnv], EvictionPolicy]


def accesses(
    stream: Sequence[Hashable], build: Build, num_blocks: int, seed: int = 0
) -> Iterator[tuple[bool, Hashable]]:
    """For each reference of the stream, whether it was a hit, and the content that had to go for it (None: nothing)."""
    foresight = Foresight()
    if getattr(build, "clairvoyant", False):
        for number, key in enumerate(stream):
            foresight.expect(number, [key])
    policy = build(PolicyEnv(now=lambda: 0, num_blocks=num_blocks, block_size_tokens=1, seed=seed, future=foresight))
    resident: dict[Hashable, Block] = {}
    for number, key in enumerate(stream):
        foresight.pass_by(number)
        block, lost = resident.get(key), None
        if block is not None:
            policy.on_hit([block], False)
            policy.on_acquire([block])
            policy.on_release([block])
            yield True, None
            continue
        if len(resident) == num_blocks:
            block = policy.pop_victim(key)
            lost = block.key
            del resident[lost]
            policy.on_evict(block)
        else:
            block = Block(len(resident))
        resident[key] = block
        block.key = key
        block.ref_count = 1
        policy.on_insert([block])
        block.ref_count = 0
        policy.on_release([block])
        yield False, lost


def num_hits(stream: Sequence[Hashable], build: Build, num_blocks: int) -> int:
    return sum(hit for hit, _ in accesses(stream, build, num_blocks))


def told(stream: str, build: Build, num_blocks: int) -> str:
    """A letter a reference: + for a hit, . for a miss into free memory, else the content that was lost."""
    return "".join("+" if hit else str(lost or ".") for hit, lost in accesses(stream, build, num_blocks))


@cache
def mooncake(name: str, num_requests: int | None = None) -> list[int]:
    """The block ids of all requests of a public trace, or of the first so many, one after the other."""
    lines = (SHARED / "traces" / "mooncake" / f"{name}.jsonl").read_text().splitlines()[:num_requests]
    return [block for line in lines for block in json.loads(line)["hash_ids"]]


@cache
def oracle(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SHARED / "oracles" / name).read_text())
    return loaded
