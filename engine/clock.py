"""The engine's clock: time spent, in integer picoseconds, without the idle time that the loop jumps over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch.nn.functional import linear, silu

from core.errors import InputError
from core.units import PS_PER_S

_PS_PER_NS = 1000
_PROBE_INTERVAL_PS = PS_PER_S // 4


class ProbeReading(NamedTuple):
    """How long the probe took, and when, on the run's own time."""

    now_ps: int
    duration_ps: int


class Probe(Protocol):
    """A fixed piece of work."""

    def __call__(self) -> None: ...


class DriftProbe:
    """A bf16 MLP, about 5 ms on one core of 2024: always the same work, so its duration tells the machine's speed."""

    _NUM_ROWS, _HIDDEN, _INTERMEDIATE, _NUM_PASSES = 64, 576, 1536, 8

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(num_out: int, num_in: int) -> torch.Tensor:
            return (torch.randn(num_out, num_in, generator=generator) * num_in**-0.5).bfloat16()

        self._x = normal(self._NUM_ROWS, self._HIDDEN)
        self._up = normal(self._INTERMEDIATE, self._HIDDEN)
        self._down = normal(self._HIDDEN, self._INTERMEDIATE)

    @torch.inference_mode()
    def __call__(self) -> None:
        x = self._x
        for _ in range(self._NUM_PASSES):
            x = linear(silu(linear(x, self._up)), self._down)


class EngineClock:
    """Reads `read_ns`, less what the probe took.

    With a probe, `probe_if_due` runs it once per quarter second of clock; `probe_readings` then serve to normalise step
    times for the machine's drift.
    """

    def __init__(self, read_ns: Callable[[], int], probe: Probe | None = None) -> None:
        self.probe_readings: list[ProbeReading] = []
        self._read_ns = read_ns
        self._probe = probe
        self._excluded_ns = 0
        self._probe_due_ps = self.read_ps()

    def read_ps(self) -> int:
        """Picoseconds since some fixed moment; never falls."""
        return (self._read_ns() - self._excluded_ns) * _PS_PER_NS

    def probe_if_due(self, now_ps: int) -> None:
        """Runs the probe if its interval has passed; `now_ps` is the run's time, kept with the reading."""
        if self._probe is None or self.read_ps() < self._probe_due_ps:
            return
        start_ns = self._read_ns()
        self._probe()
        duration_ns = self._read_ns() - start_ns
        self._excluded_ns += duration_ns
        self.probe_readings.append(ProbeReading(now_ps, duration_ns * _PS_PER_NS))
        self._probe_due_ps = self.read_ps() + _PROBE_INTERVAL_PS


def engine_clock(mode: str, probe: Probe | None = None) -> EngineClock:
    """The clock of `engine.clock=wall|cpu`. `cpu` counts this process alone: neighbours disturb it less.

    Raises InputError for any other mode.
    """
    if mode == "wall":
        return EngineClock(time.perf_counter_ns, probe)
    if mode == "cpu":
        return EngineClock(time.process_time_ns, probe)
    raise InputError(f"engine.clock={mode!r} is unknown; expected wall or cpu")
