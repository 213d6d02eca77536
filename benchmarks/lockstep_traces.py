"""Claim: on the first 200 requests of seven traces, simulator and engine decide the same, and no KV is out of place.

Runs the real engine (a tiny seeded model, wall clock, shadow tags on) under memory pressure, preempting by recompute
and by swap, replays what it recorded in a fresh process, and prints a row a run. Public traces are read from the folder
given (default: ../shared/traces); those that are absent are left out. Exit status 1 if any two decisions differ, or if
a run was not under pressure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

from kvtwin.api import compose
from kvtwin.engine_runs import load_engine_run
from kvtwin.replaying import check_lockstep
from kvtwin.store import write_run

RESULT = Path(__file__).parent / "results" / "lockstep_traces.md"
NUM_REQUESTS = 200
TINY_MODEL = {
    "name": "tiny",
    "num_layers": 2,
    "hidden": 32,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate": 48,
    "vocab_size": 512,
    "max_context_tokens": 4096,
}


class Case(NamedTuple):
    """A trace, its scale for the tiny model, and a pool that is too small for it."""

    trace: str
    path: str  # below the folder of public traces; empty for a bundled one
    length_scale: str
    rate_scale: int
    block_size_tokens: int
    num_blocks: int

    def overrides(self, folder: Path) -> list[str]:
        where = [f"trace.path={folder / self.path}"] if self.path else []
        return [
            *where,
            f"trace.limit={NUM_REQUESTS}",
            f"trace.length_scale={self.length_scale}",
            f"trace.rate_scale={self.rate_scale}",
            f"pool.block_size_tokens={self.block_size_tokens}",
            f"pool.num_blocks={self.num_blocks}",
            f"pool.host_blocks={4 * self.num_blocks}",
        ]


CASES = (
    Case("chat_sample", "", "1/16", 20, 4, 90),
    Case("agent_sessions_sample", "", "1/16", 1000, 4, 72),
    Case("long_documents_sample", "", "1/32", 50, 4, 80),
    Case("azure_conv", "azure/AzureLLMInferenceTrace_conv.csv", "1/8", 20, 16, 60),
    Case("azure_code", "azure/AzureLLMInferenceTrace_code.csv", "1/8", 100, 16, 80),
    Case("mooncake_conversation", "mooncake/conversation_trace.jsonl", "1/32", 20, 16, 260),
    Case("mooncake_synthetic", "mooncake/synthetic_trace.jsonl", "1/32", 50, 16, 170),
)
COMMON = [
    *(f"model.{key}={value}" for key, value in TINY_MODEL.items()),
    "admission.full_prompt=false",
    "scheduler.max_batch_tokens=512",
    "engine.weights=random",
    "engine.dtype=float32",
    "engine.shadow=true",
]


def runs(folder: Path) -> Iterator[dict[str, Any]]:
    """One row a run."""
    for case in CASES:
        if case.path and not (folder / case.path).exists():
            print(f"left out: {folder / case.path} is not here", file=sys.stderr)
            continue
        for mode in ("recompute", "swap"):
            yield run(case, mode, [*COMMON, *case.overrides(folder)])


def run(case: Case, mode: str, overrides: list[str]) -> dict[str, Any]:
    config, _ = compose("engine", "file" if case.path else case.trace, overrides, {"preemption": mode})
    result = load_engine_run(config).run(f"{case.trace}, {mode}")
    records = result.records
    with tempfile.TemporaryDirectory() as out:
        kept = write_run(
            Path(out),
            records.summary,
            requests=records.requests,
            steps=records.steps,
            gaps=records.gaps,
            files=records.files,
        )
        lockstep = check_lockstep(kept, result.log)
    metrics, checked = records.summary["metrics"], records.summary["engine"]["shadow_checked"]
    return {
        "trace": case.trace,
        "preemption": mode,
        "finished": metrics["outcomes"]["finished"],
        "steps": records.summary["cost"]["num_steps"],
        "evictions": metrics["num_evictions"],
        "preemptions": metrics["num_preemptions"],
        **{f"{kind} tags": checked.get(kind, 0) for kind in ("read", "hit", "swap_in")},
        "decisions": len(result.log),
        "lockstep": lockstep.first_difference or "identical",
        "engine s": round(records.summary["cost"]["wall_s"], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[1].parent / "shared" / "traces")
    rows = list(runs(parser.parse_args().folder))
    table = Table(*rows[0], title=f"Lockstep on the first {NUM_REQUESTS} requests", box=MARKDOWN)
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    console = Console(width=180, record=True)
    console.print(table)
    lines = [line.strip() for line in console.export_text().splitlines()]
    RESULT.write_text("\n".join(lines).strip() + "\n", encoding="utf-8")
    return 0 if all(row["lockstep"] == "identical" and row["evictions"] and row["preemptions"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
