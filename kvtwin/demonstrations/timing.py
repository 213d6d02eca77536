"""Timing of things that are compared: in turns, on this process's CPU time, the median of many."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def timed_in_turns(
    things: Mapping[str, Callable[[], object]], num_rounds: int, num_warm_calls: int = 0
) -> dict[str, float]:
    """Median CPU seconds of each, one call of each in every round: a slow moment of the machine slows all alike.

    A first round, which meets cold caches and allocators, does not count. `num_warm_calls` of each precede the one that
    is read, so that it does not pay for what the thing before it left in the processor's caches.
    """
    readings: dict[str, list[float]] = {name: [] for name in things}
    for number in range(num_rounds + 1):
        for name, thing in things.items():
            for _ in range(num_warm_calls):
                thing()
            start_ns = time.process_time_ns()
            thing()
            spent_s = (time.process_time_ns() - start_ns) / 1e9
            if number:
                readings[name].append(spent_s)
    return {name: median(values) for name, values in readings.items()}
