"""Miss-ratio curves: what each policy hits at each capacity, between an infinite cache and Belady's bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from core.errors import InputError
from engine.interrupt import DeferredInterrupt
from kvtwin.block_replay import Mode, ReplayResult, Touch, replay_blocks
from kvtwin.bounds import min_hit_blocks, most_hit_value
from kvtwin.policy_words import PolicyChoice
from kvtwin.processes import Finished, JobProcesses
from kvtwin.progress import progress_bar
from policies.eviction.lru import LRU
from traces.block_references import BlockReferences
from traces.ragged import IntArray
from traces.sharing import prefix_distances
from traces.stack_distance import COLD, stack_distances

SCHEMA = "kvtwin.mrc/1"
_NUM_AUTO_CAPACITIES = 10
_WORTH_A_PROCESS = 300_000  # references to replay: about as long as a process takes to start
_NUM_CURVE_POINTS = 200


_Call = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class MrcOptions:
    """How the references are replayed, in how many processes, and whether Belady's bound is wanted."""

    mode: Mode
    touch: Touch
    seed: int
    num_jobs: int
    with_bound: bool


class LruCurve:
    """LRU at all capacities, from one pass of exact stack distances (Mattson et al. 1970).

    In modes prefix and leaf the distances are those of whole requests that touch their blocks tail first; touched head
    first a prefix hit is a plain hit (the blocks before it were used at least as recently). Leaf-LRU is LRU touched
    tail first. Exact below the longest request, too: of a request that does not fit its first blocks stay, and they
    are the ones touched last.
    """

    def __init__(self, references: BlockReferences, mode: Mode, touch: Touch) -> None:
        if mode is not Mode.PLAIN:
            references.parents()
        is_tail = mode is Mode.LEAF or (mode is Mode.PREFIX and touch is Touch.TAIL)
        distances = prefix_distances(references) if is_tail else stack_distances(references.blocks)
        order = np.argsort(distances, kind="stable")[np.count_nonzero(distances == COLD) :]
        self.distances = distances[order]  # of the references that hit at some capacity, ascending
        self._hit_tokens = np.concatenate(([0], np.cumsum(references.num_tokens[order])))
        self._hit_flops = None if references.flops is None else np.cumsum(np.append(0.0, references.flops[order]))
        self._num_references = references.num_references
        self._orphan_block_ratio = 0.0 if is_tail else None

    def at(self, capacity_blocks: int) -> ReplayResult:
        num_hits = int(self.hit_blocks(np.array([capacity_blocks]))[0])
        num_misses, tokens = self._num_references - num_hits, int(self._hit_tokens[num_hits])
        flops = None if self._hit_flops is None else float(self._hit_flops[num_hits])
        orphans = self._orphan_block_ratio
        return ReplayResult(num_hits, num_misses, tokens, orphans, orphans, flops)

    def hit_blocks(self, capacities: IntArray) -> IntArray:
        """Hits at each capacity, `[num_capacities]`."""
        return np.searchsorted(self.distances, capacities, side="right")

    def knee(self) -> dict[str, int] | None:
        """Where more memory stops paying: the capacity at which the curve, from 0 to the least capacity that hits all
        it can, stands highest above the straight line (Kneedle, Satopää et al. 2011). None: nothing ever hits.
        """
        if not len(self.distances):
            return None
        capacities, counts = np.unique(self.distances, return_counts=True)
        height = np.cumsum(counts) / len(self.distances) - capacities / capacities[-1]
        highest = int(np.argmax(height))
        return {"capacity_blocks": int(capacities[highest]), "hit_blocks": int(counts[: highest + 1].sum())}


def measure(
    references: BlockReferences, choices: Sequence[PolicyChoice], capacities: Sequence[int], options: MrcOptions
) -> dict[str, Any]:
    """Everything `kvtwin mrc --json` tells. Deterministic, whatever the number of processes."""
    curve = LruCurve(references, options.mode, options.touch)
    points, bounds = _replayed(references, choices, capacities, options, curve)
    infinite = curve.at(references.num_unique)
    return {
        "schema": SCHEMA,
        "trace": references.trace_name,
        "mode": options.mode.value,
        "touch": options.touch.value,
        "references": references.num_references,
        "num_requests": len(references.num_blocks),
        "unique_blocks": references.num_unique,
        "longest_request_blocks": int(references.num_blocks.max()),
        "block_tokens": references.block_tokens,
        "prompt_tokens": int(references.num_tokens.sum()),
        "seed": options.seed,
        "infinite": {
            "hit_blocks": infinite.hit_blocks,
            "hit_tokens": infinite.hit_tokens,
            "hit_flops": infinite.hit_flops,
        },
        "lru_knee": curve.knee(),
        "results": points,
        "bound": bounds,
        "flop_bound": _flop_bound(references, capacities),
        "prefill_flops": None if references.flops is None else float(references.flops.sum()),
        "lru_curve": _lru_curve(curve),
    }


def _replayed(
    references: BlockReferences,
    choices: Sequence[PolicyChoice],
    capacities: Sequence[int],
    options: MrcOptions,
    curve: LruCurve,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Points by policy, then capacity; and Belady's, if wanted. LRU's are read off its curve."""
    by_replay = [choice for choice in choices if choice.policy is not LRU]
    longest = int(references.num_blocks.max())
    calls: list[_Call] = [
        (replay_blocks, (references, choice.make, capacity, options.mode, options.touch, options.seed))
        for choice in by_replay
        for capacity in capacities
    ]
    if options.with_bound:
        calls += [
            (min_hit_blocks, (references.blocks, capacity, options.mode is not Mode.PLAIN and capacity < longest))
            for capacity in capacities
        ]
    answers = iter(_called(calls, references.num_references, options.num_jobs))
    found = {choice.label: [next(answers) for _ in capacities] for choice in by_replay}
    found |= {choice.label: [curve.at(c) for c in capacities] for choice in choices if choice.policy is LRU}
    most = dict(zip(capacities, answers, strict=options.with_bound))
    points = [
        _point(choice.label, capacity, result, references.num_references, most.get(capacity))
        for choice in choices
        for capacity, result in zip(capacities, found[choice.label], strict=True)
    ]
    return points, [_bound(capacity, num_hits, references.num_references) for capacity, num_hits in most.items()]


def _called(calls: Sequence[_Call], num_references: int, num_jobs: int) -> list[Any]:
    """The answers in the order of the calls, from several processes where that pays. Ctrl-C ends them all."""
    num_jobs = min(num_jobs, len(calls), 1 + len(calls) * num_references // _WORTH_A_PROCESS)
    answer, answers = partial(_answer, calls), []
    with progress_bar("mrc", len(calls), "replays") as progress:
        if num_jobs <= 1:
            for number in range(len(calls)):
                answers.append(answer(number))
                progress.show(number + 1)
            return answers
        with JobProcesses(answer, range(len(calls)), num_jobs, DeferredInterrupt()) as processes:
            return [_of_process(finished) for finished in processes.results(progress.show)]


def _answer(calls: Sequence[_Call], number: int) -> Any:
    call, args = calls[number]
    return call(*args)


def _of_process(finished: Finished[Any]) -> Any:
    """The answer that a process gave. Raises what was raised there, or InputError where it died."""
    if finished.error is not None:
        raise finished.error
    if finished.answer is None:
        raise InputError(f"a process ended by itself, exit code {finished.exit_code}; fewer may fit memory: --jobs 1")
    return finished.answer


def _point(
    label: str, capacity: int, result: ReplayResult, num_references: int, most_hits: int | None
) -> dict[str, Any]:
    return {
        "policy": label,
        "capacity_blocks": capacity,
        "miss_blocks": result.miss_blocks,
        "hit_blocks": result.hit_blocks,
        "hit_tokens": result.hit_tokens,
        "hit_block_ratio": result.hit_blocks / num_references,
        "regret_blocks": None if most_hits is None else most_hits - result.hit_blocks,
        "orphan_block_ratio": result.orphan_block_ratio,
        "unreachable_block_ratio": result.unreachable_block_ratio,
        "hit_flops": result.hit_flops,
    }


def _bound(capacity: int, num_hits: int, num_references: int) -> dict[str, Any]:
    return {
        "policy": "belady",
        "capacity_blocks": capacity,
        "miss_blocks": num_references - num_hits,
        "hit_blocks": num_hits,
        "hit_block_ratio": num_hits / num_references,
    }


def _flop_bound(references: BlockReferences, capacities: Sequence[int]) -> list[dict[str, Any]]:
    """What no policy's hits can save more than, where the references know their FLOP."""
    if references.flops is None:
        return []
    most = most_hit_value(references.blocks, references.flops, capacities)
    return [{"capacity_blocks": c, "hit_flops": flops} for c, flops in zip(capacities, most, strict=True)]


def _lru_curve(curve: LruCurve) -> list[dict[str, int]]:
    """LRU's whole curve, thinned out to log-spaced capacities."""
    if not len(curve.distances):
        return []
    capacities = log_spaced(1, int(curve.distances[-1]), _NUM_CURVE_POINTS)
    hits = curve.hit_blocks(np.array(capacities))
    return [{"capacity_blocks": c, "hit_blocks": int(h)} for c, h in zip(capacities, hits, strict=True)]


def auto_capacities(references: BlockReferences) -> list[int]:
    """Log-spaced, from a thousandth of the unique blocks up to all of them."""
    return log_spaced(max(1, references.num_unique // 1000), references.num_unique, _NUM_AUTO_CAPACITIES)


def log_spaced(first: int, last: int, number: int) -> list[int]:
    """At most so many different whole numbers from `first` to `last`, each about as many times the one before."""
    return sorted({round(value) for value in np.geomspace(first, last, number).tolist()})
