"""A run's steps in fewer rows: stretches of one plan's steps in which no count changes, without a row a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.even_plans import EvenPlans
from core.recorder import Recorder

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stretches:
    """A row a stretch, in order of time, [num_stretches]."""

    plan: Ints  # its place
    place: Ints  # steps of the run before it
    num_earlier_steps: Ints  # of its plan
    duration_ps: Ints
    num_referenced_blocks: Ints
    num_cached_blocks: Ints
    num_orphan_blocks: Ints
    num_shared_references: Ints
    num_internal_tokens: Ints
    num_external_tokens: Ints


def stretches_of(recorder: Recorder, plans: EvenPlans) -> Stretches:
    """The steps of the plans that the recorder holds; a stretch begins with the first eviction, too.

    O(plans + changes of a count), and a pass of numpy over the steps.
    """
    first, total = plans.first_steps, int(plans.num_steps.sum())
    counts = (
        recorder.step_referenced_blocks,
        recorder.step_cached_blocks,
        recorder.step_orphan_blocks,
        recorder.step_shared_references,
        recorder.step_internal_tokens,
        recorder.step_external_tokens,
    )
    changes = [count.places for count in counts] + [recorder.step_evictions_before_end.places[:1]]
    begins = _begins([first, *changes], total)
    plan = np.repeat(np.arange(len(plans)), plans.num_steps)[begins]
    num_earlier = begins - first[plan]
    busy_ps = plans.elapsed_ps(slice(None), plans.num_steps)
    busy_before_ps = (np.cumsum(busy_ps) - busy_ps)[plan] + plans.elapsed_ps(plan, num_earlier)
    return Stretches(
        plan,
        begins,
        num_earlier,
        np.diff(busy_before_ps, append=busy_ps.sum()),
        *(count.at(begins) for count in counts),
    )


def _begins(changes: list[Ints], total: int) -> Ints:
    """Where stretches begin: with plans, and where a count changes."""
    is_begin = np.zeros(total, dtype=bool)
    for places in changes:
        is_begin[places[places < total]] = True
    return np.flatnonzero(is_begin)
