"""The plans of a recorder as columns, each with steps that grow evenly: what all sums over steps are computed from."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from core.recorder import PLAN, UNEVEN, Recorder
from core.request_log import RequestLog

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class EvenPlans:
    """A row a plan, in order of time, [num_plans]. A plan whose durations are listed, step by step, is as many plans of
    one step here, and what a plan leaves behind is told of each of them.
    """

    num_steps: Ints
    start_ps: Ints
    first_ps: Ints  # duration of the first step
    growth_ps: Ints  # what each further step takes longer
    decided_ps: Ints
    num_filled_tokens: Ints  # slots of referenced blocks that hold a token, in the first step
    filled_a_step: Ints  # what each further step adds to that
    num_gaps: Ints  # decodes, in each step, whose last token came with the step before
    num_lost_gaps: Ints  # those that the last step lost
    num_running: Ints
    referenced_blocks_after: Ints
    cached_blocks_after: Ints
    orphan_blocks_after: Ints

    def __len__(self) -> int:
        return len(self.num_steps)

    @property
    def first_steps(self) -> Ints:
        """How many steps precede each plan."""
        return np.asarray(np.cumsum(self.num_steps) - self.num_steps)

    @property
    def end_ps(self) -> Ints:
        """When the last step ended."""
        return np.asarray(self.start_ps + self.elapsed_ps(slice(None), self.num_steps))

    @property
    def last_ps(self) -> Ints:
        """Duration of the last step."""
        return np.asarray(self.first_ps + self.growth_ps * (self.num_steps - 1))

    def elapsed_ps(self, rows: Ints | Bools | slice, num_steps: Ints) -> Ints:
        """How long the first `num_steps` steps of these plans took."""
        return np.asarray(self.first_ps[rows] * num_steps + self.growth_ps[rows] * (num_steps * (num_steps - 1) >> 1))

    def in_single_steps(self, which: Bools, durations_ps: Ints, decides_ahead: bool) -> EvenPlans:
        """With these plans as so many of one step, whose durations are given, those of one plan after another's."""
        num_rows = np.where(which, self.num_steps, 1)
        row, place = expanded(num_rows)
        columns = {field.name: getattr(self, field.name)[row] for field in fields(self)}
        single, begins = which[row], place == 0
        columns["first_ps"][single] = durations_ps
        columns["growth_ps"][single] = 0
        columns["num_steps"][single] = 1
        taken_ps = np.where(single, columns["first_ps"], 0)
        since_ps = np.cumsum(taken_ps) - taken_ps
        columns["start_ps"] += since_ps - since_ps[begins][row]
        starts_ps = np.roll(columns["start_ps"], 1) if decides_ahead else columns["start_ps"]
        columns["decided_ps"] = np.where(begins, columns["decided_ps"], starts_ps)
        columns["num_filled_tokens"] += place * columns["filled_a_step"]
        columns["num_lost_gaps"][place < num_rows[row] - 1] = 0
        return EvenPlans(**columns)


def expanded(num_each: Ints) -> tuple[Ints, Ints]:
    """Of so many of each row: which row, and how many of it come before, [their sum]."""
    row = np.repeat(np.arange(len(num_each)), num_each)
    return row, np.arange(len(row)) - (np.cumsum(num_each) - num_each)[row]


def even_plans(recorder: Recorder) -> EvenPlans:
    """Those that the recorder holds."""
    table = np.frombuffer(recorder.plans.packed(), dtype=np.int64).reshape(-1, len(PLAN))
    told: dict[str, Ints] = dict(zip(PLAN, np.ascontiguousarray(table.T), strict=True))
    num_plans, decided_ps = len(table), np.array(recorder.plan_decided_ps, dtype=np.int64)
    num_lost = np.zeros(num_plans, dtype=np.int64)
    num_lost[list(recorder.lost_decodes)] = list(recorder.lost_decodes.values())
    plans = EvenPlans(
        num_steps=told["num_steps"],
        start_ps=told["start_ps"],
        first_ps=told["first_ps"],
        growth_ps=told["growth_ps"],
        decided_ps=decided_ps if recorder.decides_ahead else told["start_ps"],
        num_filled_tokens=told["num_filled_tokens"],
        filled_a_step=told["num_decodes"] * recorder.num_kv_groups,
        num_gaps=told["num_regular_gaps"],
        num_lost_gaps=num_lost,
        num_running=told["num_running"],
        referenced_blocks_after=told["referenced_blocks_after"],
        cached_blocks_after=recorder.cached_blocks_after.expand(num_plans),
        orphan_blocks_after=recorder.orphan_blocks_after.expand(num_plans),
    )
    is_listed = plans.growth_ps == UNEVEN
    if not is_listed.any():
        return plans
    return plans.in_single_steps(is_listed, np.array(recorder.uneven_ps, dtype=np.int64), recorder.decides_ahead)


def with_waiting(plans: EvenPlans, requests: RequestLog, decides_ahead: bool) -> tuple[EvenPlans, Ints]:
    """The plans, and how many requests waited in every step of each: those that had arrived when it was decided, were
    not done, and did not run. Plans in whose midst somebody came or went are in single steps.
    """
    num_before_last = np.maximum(plans.num_steps - 1 - int(decides_ahead), 0)
    last_decided_ps = plans.start_ps + plans.elapsed_ps(slice(None), num_before_last)
    changes, changes_ps = np.zeros(len(plans), dtype=bool), _changes_ps(requests)
    for change_ps in changes_ps:
        plan = np.searchsorted(plans.decided_ps, change_ps) - 1
        changes[plan[(plan >= 0) & (change_ps <= last_decided_ps[plan])]] = True
    changes &= plans.num_steps > 1
    if changes.any():
        row, place = expanded(plans.num_steps[changes])
        durations_ps = plans.first_ps[changes][row] + plans.growth_ps[changes][row] * place
        plans = plans.in_single_steps(changes, durations_ps, decides_ahead)
    return plans, _num_present(changes_ps, plans.decided_ps) - plans.num_running


def num_present(requests: RequestLog, at_ps: Ints) -> Ints:
    """Requests that had arrived and were not done at these times."""
    return _num_present(_changes_ps(requests), at_ps)


def _num_present(changes_ps: tuple[Ints, Ints], at_ps: Ints) -> Ints:
    num_arrived, num_done = (np.searchsorted(change_ps, at_ps, "right") for change_ps in changes_ps)
    return np.asarray(num_arrived - num_done)


def _changes_ps(requests: RequestLog) -> tuple[Ints, Ints]:
    """When requests arrived, and when they were done, ascending."""
    finish_ps = requests.column("finish_ps")
    return np.sort(requests.column("arrival_ps")), np.sort(finish_ps[finish_ps >= 0])
