"""What is timed: replays of a trace, ours beside Dynamo's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvtwin import compiled
from speed.contender import (
    COMPILED,
    DYNAMO,
    OURS,
    CannotMeasure,
    Result,
    Tools,
    our_environment,
    run_child,
    timed_child,
)
from speed.fitted import observe, observed
from speed.workloads import RATE_RPS, AzureShaped, Files, Public

LEAST_STEPS_RATIO = 0.9  # ours to Dynamo's: fewer would be less work


@dataclass(frozen=True)
class ReplayCase:
    """One trace, one replica or several, replayed by us and, unless Dynamo has no such policy, by Dynamo."""

    name: str
    title: str
    workload: AzureShaped | Public
    num_blocks: int = 27_000
    block_size_tokens: int = 16
    max_num_seqs: int = 128
    max_batch_tokens: int = 4_096
    prefix_caching: bool = False
    eviction: str = "lru"
    num_replicas: int = 1
    routing: str = "round_robin"
    cost_of: str | None = None  # the case whose fitted cost ours has; None: its own
    has_peer: bool = True

    def contenders(self, tools: Tools) -> dict[str, Callable[[], Result]]:
        """What to run, by name; empty if the trace is absent."""
        files = self.workload.files(tools.scratch, tools.public)
        if files is None:
            return {}
        small = self._small(tools)
        found: dict[str, Callable[[], Result]] = {OURS: lambda: self._run_ours(OURS, tools, files, small)}
        if compiled.folder().is_dir():
            found[COMPILED] = lambda: self._run_ours(COMPILED, tools, files, small)
        if tools.dynamo is not None and self.has_peer:
            python = tools.dynamo
            found[DYNAMO] = lambda: (
                timed_child(python, "run_dynamo.py", self._dynamo_job(files, small)) | self.peer_work()
            )
        return found

    def look(self, tools: Tools) -> None:
        """Observes Dynamo's steps in this case anew."""
        files = self.workload.files(tools.scratch, tools.public)
        if tools.dynamo is not None and files is not None and self.has_peer:
            observe(self.name, tools.dynamo, self._dynamo_job(files, files))

    def peer_work(self) -> Result:
        """Dynamo's steps and preemptions, which a timed run does not tell."""
        seen = observed(self.name)
        return {key: seen.get(key) for key in ("num_steps", "num_preemptions")}

    def profile(self, tools: Tools) -> str:
        """Where our time goes, as Python's profiler tells it."""
        files = self.workload.files(tools.scratch, tools.public)
        if files is None:
            raise CannotMeasure(f"its trace is not in {tools.public} (--traces)")
        job = self._our_job(files, self._small(tools)) | {"profile": True}
        return run_child(tools.ours, "run_kvtwin.py", job, our_environment()).log

    @staticmethod
    def _small(tools: Tools) -> Files:
        return AzureShaped(20).files(tools.scratch, tools.public)

    def _run_ours(self, kind: str, tools: Tools, files: Files, small: Files) -> Result:
        return timed_child(tools.ours, "run_kvtwin.py", self._our_job(files, small), our_environment(kind))

    def _our_job(self, files: Files, small: Files) -> dict[str, Any]:
        return {"overrides": self.overrides(files.ours), "warm_up": self.overrides(small.ours), "profile": False}

    def overrides(self, path: Path) -> list[str]:
        """Our settings."""
        cost = observed(self.cost_of or self.name).get("cost")
        if cost is None:
            raise CannotMeasure(f"no cost is known for {self.cost_of or self.name}; learn it with --observe")
        return [
            "trace=file",
            f"trace.path={path}",
            f"pool.num_blocks={self.num_blocks}",
            f"pool.block_size_tokens={self.block_size_tokens}",
            f"scheduler.max_num_seqs={self.max_num_seqs}",
            f"scheduler.max_batch_tokens={self.max_batch_tokens}",
            f"scheduler.prefix_caching={str(self.prefix_caching).lower()}",
            f"eviction={self.eviction}",
            f"cluster.num_replicas={self.num_replicas}",
            "cluster.shards=1",
            f"routing={self.routing}",
            "cost=linear",
            "cost.decode_sequence_s=0",
            *(f"cost.{key}={value}" for key, value in cost.items()),
        ]

    def _dynamo_job(self, files: Files, small: Files) -> dict[str, Any]:
        engine = {
            "num_gpu_blocks": self.num_blocks,
            "block_size": self.block_size_tokens,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_batch_tokens,
            "enable_prefix_caching": self.prefix_caching,
        }
        return {
            "trace": str(files.mooncake),
            "warm_up": str(small.mooncake),
            "engine": engine,
            "num_workers": self.num_replicas,
            "observe": False,
        }

    def complaints(self, results: dict[str, Result]) -> list[str]:
        """Why the two did not do equal work. With another case's cost ours is not meant to."""
        if DYNAMO not in results or self.cost_of is not None:
            return []
        ours, theirs = results[OURS], results[DYNAMO]
        found = []
        if COMPILED in results and results[COMPILED]["digest"] != ours["digest"]:
            found.append("the machine code decides otherwise than the source")
        if ours["output_tokens"] != theirs["output_tokens"]:
            found.append(f"{ours['output_tokens']:,} output tokens, Dynamo {theirs['output_tokens']:,}")
        if ours["num_steps"] < LEAST_STEPS_RATIO * theirs["num_steps"]:
            found.append(f"{ours['num_steps']:,} steps, Dynamo {theirs['num_steps']:,}")
        return found


MAIN = ReplayCase("light", "6.45 requests/s", AzureShaped(10_000))
MOONCAKE = ReplayCase(
    "mooncake_512_lru",
    "Mooncake, blocks of 512, LRU",
    Public("mooncake/conversation_trace.jsonl"),
    num_blocks=30_000,
    block_size_tokens=512,
    max_num_seqs=256,
    max_batch_tokens=8_192,
    prefix_caching=True,
)
SMALL_BLOCKS = 16


def _mooncake() -> list[ReplayCase]:
    small = replace(
        MOONCAKE,
        name="mooncake_16_lru",
        title="Mooncake, blocks of 16, LRU",
        num_blocks=MOONCAKE.num_blocks * 512 // SMALL_BLOCKS,
        block_size_tokens=SMALL_BLOCKS,
    )
    found = [MOONCAKE, small]
    for like in (MOONCAKE, small):
        for eviction in ("sieve", "s3fifo", "gdsf"):
            name, title = (text.replace("lru", eviction).replace("LRU", eviction) for text in (like.name, like.title))
            case = replace(like, name=name, title=title, eviction=eviction, cost_of=like.name, has_peer=False)
            found.append(case)
    return found


def _sizes() -> list[ReplayCase]:
    """What cost may grow with: idle blocks, requests, the batch. Ours has the cost of its model in all of a kind."""
    pools = [
        replace(MAIN, name=f"pool_{blocks // 1000}k", title=f"pool of {blocks:,}", num_blocks=blocks, cost_of="light")
        for blocks in (8_000, 27_000, 200_000)
    ]
    requests = [
        replace(
            MAIN,
            name=f"requests_{name}",
            title=f"{number:,} requests",
            workload=AzureShaped(number),
            cost_of="light",
        )
        for name, number in (("10k", 10_000), ("100k", 100_000), ("1M", 1_000_000))
    ]
    batches = [
        replace(
            MAIN,
            name=f"batch_{num_seqs}",
            title=f"{num_seqs} sequences",
            workload=AzureShaped(10_000, all_at_once=True),
            max_num_seqs=num_seqs,
            num_blocks=200_000,
            cost_of="saturated",
        )
        for num_seqs in (32, 128, 512)
    ]
    return [*pools, *requests, *batches]


def _fleets() -> list[ReplayCase]:
    """As many requests in all, each replica with the same load. One process of ours, so that CPU time compares."""
    return [
        replace(
            MAIN,
            name=f"replicas_{number}{suffix}",
            title=f"{number} replicas, {routing}",
            workload=AzureShaped(32_000, rate_rps=RATE_RPS * number),
            num_replicas=number,
            routing=routing,
            cost_of="light",
            has_peer=not suffix,
        )
        for number, routing, suffix in (
            (1, "round_robin", ""),
            (16, "round_robin", ""),
            (64, "round_robin", ""),
            (64, "least_outstanding", "_least"),
        )
    ]


REPLAYS: tuple[ReplayCase, ...] = (
    MAIN,
    replace(MAIN, name="saturated", title="all at t = 0", workload=AzureShaped(10_000, all_at_once=True)),
    replace(MAIN, name="pressure", title="2,000 blocks", num_blocks=2_000),
    replace(
        MAIN, name="caching", title="caching on", workload=AzureShaped(10_000, is_hashed=True), prefix_caching=True
    ),
    *_mooncake(),
    *_sizes(),
    *_fleets(),
)
