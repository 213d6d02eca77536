"""Random workloads for property tests: small, crowded, full of ties. A step takes some ten picoseconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from eviction_policies import CAUSAL
from hypothesis import strategies as st
from world import Run, Settings, simulate, trace_of

from policies.batching import Chunked, Orca, PrefillFirst, Static
from policies.preemption.strict_priority import StrictPriority
from sim.linear_cost import LinearCost
from traces.ragged import Ragged
from traces.replay import Arrivals
from traces.schema import Trace

STEP_PS = 10  # of the cheapest cost model: arrivals at its multiples tie with the ends of steps


@dataclass(frozen=True)
class Workload:
    """One random case: what comes in, under which settings, at what cost."""

    trace: Trace
    settings: Settings
    cost: LinearCost
    arrivals: Arrivals
    concurrency: int

    def run(self, settings: Settings) -> Run:
        """In the simulator, under these settings."""
        return simulate(self.trace, settings, self.cost, self.arrivals, self.concurrency)


def times_ps(most: int) -> st.SearchStrategy[int]:
    """Half of them on a step boundary of the cheapest cost model."""
    return st.one_of(st.integers(0, most // STEP_PS).map(lambda steps: steps * STEP_PS), st.integers(0, most))


@st.composite
def traces(draw: st.DrawFn, block_size: int) -> Trace:
    num = draw(st.integers(1, 9))

    def column(values: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(values, min_size=num, max_size=num))

    arrival_ps = sorted(column(times_ps(250)))
    prompts, outputs = column(st.integers(1, 24)), column(st.integers(1, 16))
    options: dict[str, Any] = {}
    if draw(st.booleans()):
        options["priority"] = column(st.integers(0, 2))
    if draw(st.booleans()):
        options["cancel_after_ps"] = column(st.one_of(st.just(-1), times_ps(200)))
    if draw(st.integers(0, 3)) == 0:
        options["num_samples"] = column(st.integers(1, 3))
    if draw(st.integers(0, 2)) == 0:
        options["parent"] = [draw(st.integers(-1, row - 1)) for row in range(num)]
        options["think_time_ps"] = column(st.one_of(st.just(0), times_ps(40)))
    options |= draw(prefixes(block_size, prompts))
    trace = trace_of([time * 1e-12 for time in arrival_ps], prompts, outputs, **options)
    if "segments" not in options or "num_samples" in options or draw(st.booleans()):
        return trace
    # Outputs that go on in the text that the prompts are of: what decodes fill may be known already.
    starts = [begin + length for [(begin, length)] in options["segments"]]
    rows = [[(start, num_tokens)] for start, num_tokens in zip(starts, outputs, strict=True)]
    return replace(trace, output_segments=Ragged.of_segments(rows))


@st.composite
def prefixes(draw: st.DrawFn, block_size: int, prompts: list[int]) -> dict[str, Any]:
    """What the prompts consist of: nothing said, block hashes of three families, or stretches of a short text."""
    kind = draw(st.sampled_from(["none", "hashes", "text"]))
    if kind == "none":
        return {}
    if kind == "text":
        return {"segments": [[(draw(st.sampled_from([0, 1, 100])), num_tokens)] for num_tokens in prompts]}
    hash_block = block_size * draw(st.integers(1, 2))
    rows = []
    for row, num_tokens in enumerate(prompts):
        family, num_shared = draw(st.integers(0, 2)), draw(st.integers(0, 6))
        depths = range(-(-num_tokens // hash_block))
        rows.append([family * 100 + d if d < num_shared else 1000 + row * 100 + d for d in depths])
    return {"hash_ids": rows, "hash_block_tokens": hash_block}


@st.composite
def settings_of(draw: st.DrawFn, block_size: int, trace: Trace) -> Settings:
    """The pool is just big enough for the largest request (or one block too small), up to twice as big."""
    is_async = draw(st.integers(0, 2)) == 0
    is_priority, mode = draw(st.booleans()), draw(st.sampled_from(["recompute", "swap"]))
    largest = -(-int((trace.num_prompt_tokens + trace.num_output_tokens).max() - 1) // block_size)
    return Settings(
        num_blocks=draw(st.integers(max(1, largest - 1), 2 * largest + 1)),
        block_size=block_size,
        max_num_seqs=draw(st.integers(1, 8)),
        budget=draw(st.one_of(st.integers(1, 6), st.integers(7, 40))),
        caching=draw(st.booleans()),
        chunked=draw(st.integers(0, 3)) > 0,
        long_prefill=draw(st.one_of(st.just(0), st.integers(1, 8))),
        full_prompt=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.2])),
        priority=is_priority,
        mode=mode,
        preemption=partial(StrictPriority, mode=mode) if is_priority and draw(st.booleans()) else None,
        batching=draw(st.sampled_from([Chunked, Chunked, PrefillFirst, Orca, Static])),
        admit_after_preemption=not is_async and draw(st.booleans()),
        own_preemption_ends_step=draw(st.booleans()),
        host_blocks=draw(st.sampled_from([0, 2, 6, 50])),
        free_order=draw(st.sampled_from(["unhashed_first", "append_all"])),
        keep_cancelled=draw(st.booleans()),
        publication="schedule" if is_async else draw(st.sampled_from(["schedule", "step_end"])),
        asynchronous=is_async,
        eviction=draw(st.sampled_from(CAUSAL)),
        leaf_first=draw(st.booleans()),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    block_size = draw(st.integers(1, 8))
    trace = draw(traces(block_size))
    return Workload(
        trace,
        draw(settings_of(block_size, trace)),
        LinearCost(
            STEP_PS * 1e-12,
            prefill_token_s=draw(st.sampled_from([0, 1e-12])),
            context_token_s=draw(st.sampled_from([0, 1e-12])),
            swap_block_s=draw(st.sampled_from([0, 3e-12])),
        ),
        draw(st.sampled_from([Arrivals.RECORDED, Arrivals.RECORDED, Arrivals.ALL_AT_ONCE, Arrivals.CLOSED_LOOP])),
        draw(st.integers(1, 4)),
    )
