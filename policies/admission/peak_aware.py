"""Room for the highest point that memory will reach, if all go on to their ends (LightLLM)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core.interfaces import Admission, AdmissionPolicy, Change, PolicyEnv, SchedulerView
from core.request import Request
from policies.prediction import LengthPredictor


class Course(NamedTuple):
    """Tokens that a sequence uses now, and how many it has yet to produce."""

    used: int
    remaining: int


def peak_tokens(courses: Iterable[Course]) -> int:
    """The most that they will use at a time: all grow by one a step, and each gives all back at its end.

    With the longest first, the i-th end finds the first i still there: max over i of i x remaining + their use. Of
    sequences that end together the last one's term counts, so their order does not matter. O(n log n).
    """
    peak = total = 0
    for number, course in enumerate(sorted(courses, key=lambda course: -course.remaining), start=1):
        total += course.used
        peak = max(peak, course.remaining * number + total)
    return peak


class PeakAware(AdmissionPolicy):
    """Admits where the peak of all that run and this one together fits the pool; it takes what each request is allowed
    for what it will produce. O(running log running) where somebody waits for memory.

    LightLLM's "past-future" scheduler (arXiv 2507.10150) estimates the lengths; so does `PeakAwarePredicted`. In
    tokens: what blocks waste at their ends is not counted, so a preemption remains possible.
    """

    rejects = False

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self._refused_step = -1
        self._num_steps = 0

    def total_tokens(self, request: Request) -> int:
        """Tokens that each of its samples is expected to produce in all."""
        return request.max_new_tokens

    def admit(self, request: Request, num_new_blocks: int, view: SchedulerView) -> Admission:
        if view.num_running == 0 or view.num_blocks is None:
            return Admission.ADMIT
        capacity = view.num_blocks * self.env.block_size_tokens // view.num_kv_groups
        excess = peak_tokens(course for each in (*view.running, request) for course in self._courses(each)) - capacity
        if excess < 0:
            return Admission.ADMIT
        self._refused_step = view.step
        self._num_steps = excess // len(request.live) + 1
        return Admission.WAIT

    def next_change(self, now_ps: int, step: int) -> Change | None:
        """While those that run decode, only the one that waits could come later. The peak falls by at most 1 a step for
        each sample of the one that waits: of the i that an end finds, those that run grow while the way to it shrinks.
        """
        return Change(step=step + self._num_steps) if self._refused_step == step else None

    def _courses(self, request: Request) -> list[Course]:
        total = self.total_tokens(request)
        return [Course(sequence.num_known, max(total - sequence.num_outputs, 0)) for sequence in request.live]


class PeakAwarePredicted(PeakAware):
    """`PeakAware` by the true lengths, or with `noise` by blurred predictions (`policies.prediction`)."""

    clairvoyant = True

    def __init__(self, env: PolicyEnv, noise: float = 0.0) -> None:
        super().__init__(env)
        self._predictor = LengthPredictor(env.seed, noise, "admission.noise")

    def total_tokens(self, request: Request) -> int:
        return self._predictor.num_output_tokens(request)
