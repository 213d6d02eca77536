"""What a report says in words: the headline and the warnings under it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvtwin.formatting import count_text, error_text, metric_text
from kvtwin.store import Run


@dataclass(frozen=True)
class Verdict:
    """`subject`: what ran. `finding`: what came out, good, bad or neutral (its `tone`)."""

    subject: str
    finding: str
    tone: str


def comparison_verdict(sim: Run, comparison: Mapping[str, Any]) -> Verdict:
    """Whether both sides decided the same; the size of the timing error is never what makes it good or bad."""
    lockstep = comparison["lockstep"]
    if lockstep is None:
        return Verdict(_subject(sim), "lockstep not run", "neutral")
    if lockstep["identical"]:
        return Verdict(_subject(sim), f"lockstep identical: {lockstep['num_decisions']:,} decisions", "good")
    first_line = str(comparison["first_difference"]).splitlines()[0]
    return Verdict(_subject(sim), f"lockstep differs: {first_line}", "bad")


def run_verdict(run: Run) -> Verdict:
    """Headline of one run: what ran, and how many requests finished."""
    outcomes = run.summary["metrics"]["outcomes"]
    num_requests, num_finished = sum(outcomes.values()), outcomes["finished"]
    tone = "neutral" if num_finished == num_requests else "bad"
    return Verdict(_subject(run), f"{num_finished:,} of {num_requests:,} requests finished", tone)


def timing_sentence(comparison: Mapping[str, Any]) -> str:
    """The three errors that a reader asks for first."""
    parts = [
        f"{label} {error_text(comparison['metrics'][name]['error_ratio'])}"
        for label, name in (("throughput", "output_tokens_per_s"), ("TTFT p50", "ttft_s.p50"), ("E2E p50", "e2e_s.p50"))
    ]
    return f"Simulated against measured: {', '.join(parts)}."


def run_sentence(run: Run) -> str:
    """The three figures that a reader asks for first."""
    metrics = run.summary["metrics"]
    ttft_s, throughput = metrics["ttft_s"], metrics["output_tokens_per_s"]
    return (
        f"Output throughput {metric_text('output_tokens_per_s', throughput)}, "
        f"TTFT p50 {metric_text('ttft_s', ttft_s['p50'])}, p99 {metric_text('ttft_s', ttft_s['p99'])}."
    )


def comparison_warnings(sim: Run, engine_runs: Sequence[Run], comparison: Mapping[str, Any]) -> list[str]:
    """Everything that qualifies the comparison, most serious first."""
    return list(_comparison_warnings(sim, engine_runs, comparison))


def run_warnings(run: Run) -> list[str]:
    """Everything that qualifies one run's figures."""
    return list(_run_warnings(run))


def _subject(run: Run) -> str:
    labels, num_requests = run.summary.get("labels", {}), run.requests["request_id"].size
    trace = run.summary["trace"].get("name", "trace")
    setting = ", ".join(str(labels[name]) for name in ("eviction", "preemption", "model") if name in labels)
    return f"{trace}, {num_requests:,} requests" + (f", {setting}" if setting else "")


def _comparison_warnings(sim: Run, engine_runs: Sequence[Run], comparison: Mapping[str, Any]) -> Iterator[str]:
    for run in (sim, *engine_runs):
        yield from _run_warnings(run)
    saturated = [side for side in ("simulated", "measured") if comparison["saturated"][side]]
    if saturated:
        yield (
            f"Saturated ({' and '.join(saturated)}): the queue grew while requests arrived, so latencies grow with the "
            "length of the trace and small errors in step time add up."
        )
    for repeat in comparison["warm_repeats"]["repeats"]:
        yield f"Engine repeat {repeat + 1} started warm: it hit prompt tokens that the first repeat had to compute."
    for side, ids in comparison["unmatched"].items():
        if ids:
            listed = ", ".join(str(number) for number in ids[:8]) + (", …" if len(ids) > 8 else "")
            yield f"{len(ids)} requests finished on one side only ({side.replace('_', ' ')}): {listed}"
    if not comparison["capacity"]["equal"]:
        yield "The two pools hold the same number of blocks but differ in bytes per token."


def _run_warnings(run: Run) -> Iterator[str]:
    kind = "Engine" if run.summary.get("kind") == "engine" else "Simulation"
    if run.is_interrupted:
        yield f"{kind} interrupted: its figures cover the part that ran."
    dropped = run.summary["trace"].get("num_dropped", {})
    if dropped:
        reasons = ", ".join(f"{count_text(count)} {reason}" for reason, count in dropped.items())
        yield f"{kind}: rows of the trace left out: {reasons}."
    if run.summary.get("ignored"):
        yield f"{kind}: trace features not honoured: {', '.join(map(str, run.summary['ignored']))}."
