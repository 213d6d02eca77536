"""A run's records as columns: the arrays of `requests.npz`, `steps.npz` and `gaps.npz`; picoseconds end here."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.attribution import Charges
from core.even_plans import even_plans, expanded, num_present
from core.recorder import Recorder
from core.request import Outcome
from core.request_log import COUNTS, TIMES, RequestLog
from core.scheduler import Scheduler
from core.units import PS_PER_S

Ints = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

NO_COUNT = -1  # an unbounded pool has no number of free blocks


def requests_of(scheduler: Scheduler) -> RequestLog:
    """Every request that the scheduler ever took: those that are done, then those it still holds."""
    held = [*scheduler.running, *scheduler.waiting]
    return scheduler.recorder.requests.with_others(held) if held else scheduler.recorder.requests


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When each step was decided and began, and how long it took, [num_steps]."""

    decided_ps: Ints
    start_ps: Ints
    duration_ps: Ints

    @classmethod
    def of(cls, recorder: Recorder) -> StepTimes:
        plans = even_plans(recorder)
        plan, num_earlier = expanded(plans.num_steps)
        start_ps = plans.start_ps[plan] + plans.elapsed_ps(plan, num_earlier)
        begun_ps = np.roll(start_ps, 1) if recorder.decides_ahead else start_ps
        decided_ps = np.where(num_earlier == 0, plans.decided_ps[plan], begun_ps)
        return cls(decided_ps, start_ps, plans.first_ps[plan] + plans.growth_ps[plan] * num_earlier)


def request_arrays(requests: RequestLog, num_rows: int | None = None) -> Arrays:
    """One row per trace row, [num_rows]; a row that never arrived is `unfinished` and has no times.

    Without `num_rows` a row per request that arrived, by id. Raises IndexError for a request id beyond `num_rows`.
    """
    row = requests.column("request_id")
    if num_rows is None:
        num_rows, order = len(row), np.argsort(row)
        request_ids, row = row[order], np.empty_like(row)
        row[order] = np.arange(num_rows)
    else:
        request_ids = np.arange(num_rows)
    columns: Arrays = {"request_id": request_ids}
    for name in TIMES:
        time_ps = requests.column(name)
        seconds = np.full(num_rows, np.nan)
        seconds[row] = np.where(time_ps >= 0, time_ps / PS_PER_S, np.nan)
        columns[name.removesuffix("_ps") + "_s"] = seconds
    for name in COUNTS:
        columns[name] = np.zeros(num_rows, dtype=np.int64)
        columns[name][row] = requests.column(name)
    columns["outcome"] = np.full(num_rows, list(Outcome).index(Outcome.UNFINISHED), dtype=np.int8)
    columns["outcome"][row] = requests.column("outcome")
    return columns | {"outcome_names": np.array([each.value for each in Outcome])}


def step_arrays(recorder: Recorder, requests: RequestLog, pool_num_blocks: int | None) -> Arrays:
    """One row per step, [num_steps]. `requests` are all that arrived: they tell how many waited when it was decided.

    Blocks are counted when the step has taken its own; `*_after` when what ended with it has freed its blocks.
    """
    num_steps = recorder.plan_column("num_steps")
    first, last = np.cumsum(num_steps) - num_steps, np.cumsum(num_steps) - 1  # places of each plan's steps
    plan, num_earlier = expanded(num_steps)
    times, total, ahead = StepTimes.of(recorder), len(plan), int(recorder.decides_ahead)
    num_decodes, num_running = recorder.plan_column("num_decodes")[plan], recorder.plan_column("num_running")[plan]
    grown = num_earlier * num_decodes
    num_filled = recorder.plan_column("num_filled_tokens")[plan] + grown * recorder.num_kv_groups
    referenced = recorder.step_referenced_blocks.expand(total)
    cached, orphans = recorder.step_cached_blocks.expand(total), recorder.step_orphan_blocks.expand(total)
    internal = recorder.step_internal_tokens.expand(total)
    num_plans = recorder.num_plans
    cached_after = recorder.cached_blocks_after.expand(num_plans)
    orphans_after = recorder.orphan_blocks_after.expand(num_plans)
    free = np.full_like(referenced, NO_COUNT) if pool_num_blocks is None else pool_num_blocks - referenced - cached
    return {
        "start_s": times.start_ps / PS_PER_S,
        "duration_s": times.duration_ps / PS_PER_S,
        "num_prefill_tokens": _placed(recorder.plan_column("num_prefill_tokens"), first, total),
        "num_decode_seqs": num_decodes,
        "decode_context_tokens": recorder.plan_column("decode_context_tokens")[plan] + grown,
        "num_running": num_running,
        "num_waiting": num_present(requests, times.decided_ps) - num_running,
        "num_referenced_blocks": referenced,
        "num_cached_blocks": cached,
        "num_shared_references": recorder.step_shared_references.expand(total),
        "num_orphan_blocks": orphans,
        "num_free_blocks": free,
        "num_referenced_blocks_after": _after(referenced, last, recorder.plan_column("referenced_blocks_after"), ahead),
        "num_cached_blocks_after": _after(cached, last, cached_after, ahead),
        "num_orphan_blocks_after": _after(orphans, last, orphans_after, ahead),
        "num_evictions": np.diff(recorder.step_evictions_before_end.expand(total), prepend=0),
        "num_preemptions": _placed(_dense(recorder.preempted, num_plans), first, total),
        "num_swapped_blocks": _placed(_dense(recorder.swapped_blocks, num_plans), first, total),
        "num_moved_blocks": _placed(_dense(recorder.moved_blocks, num_plans), first, total),
        "num_reserved_tokens": referenced * recorder.block_size - internal - num_filled,
        "num_internal_tokens": internal,
        "num_external_tokens": recorder.step_external_tokens.expand(total),
    }


def gap_arrays(recorder: Recorder) -> Arrays:
    """The weighted multiset of inter-token gaps: a step's decodes share one, those that sat out have their own."""
    plans, times = even_plans(recorder), StepTimes.of(recorder)
    multiplicity = np.repeat(plans.num_gaps, plans.num_steps)
    multiplicity[np.cumsum(plans.num_steps) - 1] -= plans.num_lost_gaps
    # Who decodes without a pause had a token at the end of the step before, also where a clock runs between the steps.
    gap_ps = np.diff(times.start_ps + times.duration_ps, prepend=0)
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


def _ints(column: list[int] | array[int]) -> Ints:
    return np.array(column, dtype=np.int64)


def _dense(by_place: dict[int, int], num_places: int) -> Ints:
    column = np.zeros(num_places, dtype=np.int64)
    column[list(by_place)] = list(by_place.values())
    return column


def _placed(plan_column: Ints, first: Ints, num_steps: int) -> Ints:
    """What happened in the first step of each plan, 0 in the others, [num_steps]."""
    column = np.zeros(num_steps, dtype=np.int64)
    column[first] = plan_column
    return column


def _after(step_column: Ints, last: Ints, plan_column: Ints, num_decided_ahead: int) -> Ints:
    """What held when each step had ended, [num_steps]: within a plan what the newest step decided by then had taken."""
    column = np.roll(step_column, -num_decided_ahead)
    column[last] = plan_column
    return column
