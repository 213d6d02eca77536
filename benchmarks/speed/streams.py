"""Streams of block references, each on its own: our policies beside libCacheSim's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from speed.contender import LIBCACHESIM, OURS, CannotMeasure, Result, Tools, our_environment, timed_child
from traces.reading import read_trace
from traces.writing import write_trace_as


@dataclass(frozen=True)
class StreamCase:
    """The block references of Mooncake's conversation trace at one capacity; both must miss equally often."""

    name: str
    title: str
    policy: str
    peer_policy: str
    capacity_blocks: int = 10_000

    def contenders(self, tools: Tools) -> dict[str, Callable[[], Result]]:
        """What to run, by name; empty if the trace is absent."""
        path = self._stream(tools)
        if path is None:
            return {}
        job = {
            "trace": str(path),
            "policy": self.policy,
            "peer_policy": self.peer_policy,
            "capacity_blocks": self.capacity_blocks,
        }
        small = path.with_name("mooncake_small.csv")
        if not small.exists():
            small.write_text("".join(path.read_text().splitlines(keepends=True)[:100]))
        found: dict[str, Callable[[], Result]] = {
            OURS: lambda: timed_child(tools.ours, "run_blocks.py", job | {"warm_up": str(small)}, our_environment())
        }
        if tools.libcachesim is not None:
            python = tools.libcachesim
            found[LIBCACHESIM] = lambda: timed_child(python, "run_libcachesim.py", job)
        return found

    def look(self, tools: Tools) -> None:
        """Nothing to learn beforehand."""

    def profile(self, tools: Tools) -> str:
        raise CannotMeasure("no profile of streams; expected the case of a replay")

    def complaints(self, results: dict[str, Result]) -> list[str]:
        """Whether one missed more often than the other."""
        misses = {name: result["num_misses"] for name, result in results.items()}
        return [f"misses differ: {misses}"] if len(set(misses.values())) > 1 else []

    @staticmethod
    def _stream(tools: Tools) -> Path | None:
        source, path = tools.public / "mooncake" / "conversation_trace.jsonl", tools.scratch / "mooncake.csv"
        if not source.exists():
            return None
        if not path.exists():
            write_trace_as("libcachesim_csv", read_trace(source), path)
        return path


STREAMS = tuple(
    StreamCase(f"stream_{peer.lower()}", f"block references, {peer}", policy, peer)
    for policy, peer in (("lru", "LRU"), ("sieve", "Sieve"), ("s3fifo[warmup=true]", "S3FIFO"), ("arc", "ARC"))
)
