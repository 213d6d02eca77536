"""A run's records as columns: the arrays of `requests.npz`, `steps.npz` and `gaps.npz`; picoseconds end here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.attribution import Charges
from core.recorder import Recorder
from core.request import Outcome, Request
from core.scheduler import Scheduler
from core.units import PS_PER_S

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

NO_COUNT = -1  # an unbounded pool has no number of free blocks


def requests_of(scheduler: Scheduler) -> list[Request]:
    """Every request that the scheduler ever took: those that are done, then those it still holds."""
    return [*scheduler.recorder.done, *scheduler.running, *scheduler.waiting]


def request_arrays(requests: Iterable[Request], num_rows: int, request_ids: Ints | None = None) -> Arrays:
    """One row per trace row, [num_rows]; a row that never arrived is `unfinished` and has no times.

    `request_ids`: those of the rows, where they are but some of a trace's. Raises IndexError for a request id beyond
    `num_rows`, KeyError for one that is not among `request_ids`.
    """
    rows = None if request_ids is None else {number: row for row, number in enumerate(request_ids.tolist())}
    outcomes = list(Outcome)
    times = {f"{name}_s": np.full(num_rows, np.nan) for name in ("arrival", "first_scheduled", "first_token", "finish")}
    counts = {name: np.zeros(num_rows, dtype=np.int64) for name in _COUNTS}
    outcome = np.full(num_rows, outcomes.index(Outcome.UNFINISHED), dtype=np.int8)
    for request in requests:
        row = request.request_id if rows is None else rows[request.request_id]
        times["arrival_s"][row] = request.arrival_ps / PS_PER_S
        for name in ("first_scheduled", "first_token", "finish"):
            time_ps = getattr(request, f"{name}_ps")
            if time_ps >= 0:
                times[f"{name}_s"][row] = time_ps / PS_PER_S
        for name, column in counts.items():
            column[row] = getattr(request, name)
        counts["num_output_tokens"][row] = _num_produced(request)
        counts["num_cached_tokens"][row] = max(request.num_cached_tokens, 0)
        outcome[row] = outcomes.index(request.outcome)
    names = np.array([each.value for each in outcomes])
    numbers = np.arange(num_rows) if request_ids is None else request_ids
    return {"request_id": numbers, **times, **counts, "outcome": outcome, "outcome_names": names}


_COUNTS = (
    "num_prompt_tokens",
    "num_output_tokens",  # produced
    "num_cached_tokens",
    "num_readmission_cached_tokens",
    "num_preemptions",
    "num_recomputed_tokens",
    "num_recomputed_evicted_tokens",
    "num_prefill_tokens",
)


def _num_produced(request: Request) -> int:
    """Tokens that came out, also of a request that is not done."""
    if request.outcome is not Outcome.UNFINISHED:
        return request.num_produced_tokens
    return request.num_produced_tokens + sum(sequence.num_outputs for sequence in request.live)


def step_arrays(recorder: Recorder, requests: Iterable[Request], pool_num_blocks: int | None) -> Arrays:
    """One row per step, [num_steps]. `requests` are all that arrived: they tell how many waited when it was decided.

    Blocks are counted when the step has taken its own; `*_after` when what ended with it has freed its blocks.
    """
    num_steps = _ints(recorder.plan_num_steps)
    duration_ps = _ints(recorder.step_duration_ps)
    first = np.cumsum(num_steps) - num_steps  # place of each plan's first step
    last = np.cumsum(num_steps) - 1
    start_ps, ahead = _start_ps(recorder), int(recorder.decides_ahead)
    num_decodes = np.repeat(_ints(recorder.plan_num_decodes), num_steps)
    steps_before = np.arange(len(duration_ps)) - np.repeat(first, num_steps)  # within the plan
    num_running = np.repeat(_ints(recorder.plan_num_running), num_steps)
    referenced, cached = _ints(recorder.step_referenced_blocks), _ints(recorder.step_cached_blocks)
    orphans = _ints(recorder.step_orphan_blocks)
    free = np.full_like(referenced, NO_COUNT) if pool_num_blocks is None else pool_num_blocks - referenced - cached
    return {
        "start_s": start_ps / PS_PER_S,
        "duration_s": duration_ps / PS_PER_S,
        "num_prefill_tokens": _placed(recorder.plan_num_prefill_tokens, first, len(duration_ps)),
        "num_decode_seqs": num_decodes,
        "decode_context_tokens": np.repeat(_ints(recorder.plan_decode_context_tokens), num_steps)
        + steps_before * num_decodes,
        "num_running": num_running,
        "num_waiting": _num_present(requests, _decided_ps(recorder, first, start_ps)) - num_running,
        "num_referenced_blocks": referenced,
        "num_cached_blocks": cached,
        "num_shared_references": _ints(recorder.step_shared_references),
        "num_orphan_blocks": orphans,
        "num_free_blocks": free,
        "num_referenced_blocks_after": _after(referenced, last, recorder.plan_referenced_blocks_after, ahead),
        "num_cached_blocks_after": _after(cached, last, recorder.plan_cached_blocks_after, ahead),
        "num_orphan_blocks_after": _after(orphans, last, recorder.plan_orphan_blocks_after, ahead),
        "num_evictions": np.diff(_ints(recorder.step_evictions_before_end), prepend=0),
        "num_preemptions": _placed(recorder.plan_num_preempted, first, len(duration_ps)),
        "num_swapped_blocks": _placed(recorder.plan_num_swapped_blocks, first, len(duration_ps)),
        "num_moved_blocks": _placed(recorder.plan_num_moved_blocks, first, len(duration_ps)),
        "num_reserved_tokens": _ints(recorder.step_reserved_tokens),
        "num_internal_tokens": _ints(recorder.step_internal_tokens),
        "num_external_tokens": _ints(recorder.step_external_tokens),
    }


def gap_arrays(recorder: Recorder) -> Arrays:
    """The weighted multiset of inter-token gaps: a step's decodes share one, those that sat out have their own."""
    num_steps = _ints(recorder.plan_num_steps)
    multiplicity = np.repeat(_ints(recorder.plan_num_regular_gaps), num_steps)
    multiplicity[np.cumsum(num_steps) - 1] -= _ints(recorder.plan_num_lost_decodes)
    # Who decodes without a pause had a token at the end of the step before, also where a clock runs between the steps.
    gap_ps = np.diff(_start_ps(recorder) + _ints(recorder.step_duration_ps), prepend=0)
    late_ps = _ints(recorder.late_gaps_ps)
    has_gaps = multiplicity > 0
    return {
        "gap_s": np.concatenate([gap_ps[has_gaps], late_ps]) / PS_PER_S,
        "multiplicity": np.concatenate([multiplicity[has_gaps], np.ones_like(late_ps)]),
    }


def charge_arrays(charges: Charges) -> Arrays:
    """Who paid for which eviction, a row for each request and eviction: the arrays of `attribution.npz`."""
    return {
        "request_id": _ints(charges.request_id),
        "num_tokens": _ints(charges.num_tokens),
        "computed_s": _ints(charges.computed_ps) / PS_PER_S,
        "evicted_s": _ints(charges.evicted_ps) / PS_PER_S,
        "evicted_step": _ints(charges.evicted_step),
        "evicted_for_request_id": _ints(charges.evicted_for),
    }


def _ints(column: list[int]) -> Ints:
    return np.array(column, dtype=np.int64)


def _start_ps(recorder: Recorder) -> Ints:
    """When each step began: the steps of a plan follow one another without a pause."""
    num_steps, duration_ps = _ints(recorder.plan_num_steps), _ints(recorder.step_duration_ps)
    elapsed_ps = np.cumsum(duration_ps) - duration_ps
    origin_ps = _ints(recorder.plan_start_ps) - elapsed_ps[np.cumsum(num_steps) - num_steps]
    start_ps: Ints = elapsed_ps + np.repeat(origin_ps, num_steps)
    return start_ps


def _decided_ps(recorder: Recorder, first: Ints, start_ps: Ints) -> Ints:
    """When each step was decided, [num_steps]; `first` are the places of the plans' first steps."""
    if not recorder.decides_ahead:
        return start_ps
    decided_ps = np.roll(start_ps, 1)
    decided_ps[first] = _ints(recorder.plan_decided_ps)
    return decided_ps


def _num_present(requests: Iterable[Request], at_ps: Ints) -> Ints:
    """Requests that had arrived and were not done at these times, [num_steps]."""
    requests = list(requests)
    arrival_ps = np.sort([request.arrival_ps for request in requests])
    finish_ps = np.sort([request.finish_ps for request in requests if request.finish_ps >= 0])
    num_arrived = np.searchsorted(arrival_ps, at_ps, side="right")
    return np.asarray(num_arrived - np.searchsorted(finish_ps, at_ps, side="right"), dtype=np.int64)


def _placed(plan_column: list[int], first: Ints, num_steps: int) -> Ints:
    """What happened in the first step of each plan, 0 in the others, [num_steps]."""
    column = np.zeros(num_steps, dtype=np.int64)
    column[first] = _ints(plan_column)
    return column


def _after(step_column: Ints, last: Ints, plan_column: list[int], num_decided_ahead: int) -> Ints:
    """What held when each step had ended, [num_steps]: within a plan what the newest step decided by then had taken."""
    column = np.roll(step_column, -num_decided_ahead)
    column[last] = _ints(plan_column)
    return column
