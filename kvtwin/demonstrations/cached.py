"""Cached against uncached generation, on the smallest model that has a cache: one attention layer."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError
from kvtwin.arguments import Arguments, count, seed
from kvtwin.demonstrations.demonstration import Curve, Demonstration, Floats, fitted_line, window_quartiles
from kvtwin.formatting import count_text, ratio_text, seconds_text

_NUM_WINDOWS = 20
_FLAT_ROWS = 8

Vector = NDArray[np.float32]


def add_options(parser: Arguments) -> None:
    parser.add_argument("--steps", type=count, default=400, metavar="N", help="tokens to generate; default 400")
    parser.add_argument("--width", type=count, default=256, metavar="N", help="of the hidden vectors; default 256")
    parser.add_argument("--repeats", type=count, default=5, metavar="N", help="passes, of which the least counts; 5")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of the weights; default 0")


def measure(options: Namespace) -> Demonstration:
    """Raises InputError for a single step, through which no line can be drawn."""
    if options.steps < 2:
        raise InputError(f"--steps {options.steps}: no line goes through one point; expected at least 2")
    layer = Layer.random(options.width, options.seed)
    passes = [_generate(layer, options.steps) for _ in range(options.repeats)]
    return _told(options, passes)


@dataclass(frozen=True)
class Layer:
    """Query, key and value projections [width, width]; what attention mixes is the next hidden vector."""

    query: Vector
    key: Vector
    value: Vector

    @classmethod
    def random(cls, width: int, seed: int) -> Layer:
        draw = np.random.default_rng(seed)
        return cls(*(draw.standard_normal((3, width, width)).astype(np.float32) / np.float32(width**0.5)))

    def attend(self, query: Vector, keys: Vector, values: Vector) -> Vector:
        """The newest token's query [width] against all keys and values [num_tokens, width]; of unit length."""
        scores = keys @ query
        weights = np.exp(scores - scores.max())
        mixed: Vector = weights @ values
        mixed /= np.sqrt(mixed @ mixed)
        return mixed


@dataclass
class Generation:
    """A text of hidden vectors, one longer after each step, and room for the keys and values of all its tokens."""

    layer: Layer
    num_steps: int
    hidden: list[Vector] = field(init=False)
    num_projections: int = 0  # of keys and values

    def __post_init__(self) -> None:
        width = len(self.layer.query)
        self.hidden = [np.eye(1, width, dtype=np.float32)[0]]
        self._keys, self._values = np.empty((2, self.num_steps, width), dtype=np.float32)

    def step_with_cache(self) -> None:
        """Keys and values of the new token only."""
        self._project(len(self.hidden) - 1)
        self._append()

    def step_without_cache(self) -> None:
        """Keys and values of every token again."""
        for place in range(len(self.hidden)):
            self._project(place)
        self._append()

    def _project(self, place: int) -> None:
        self._keys[place] = self.layer.key @ self.hidden[place]
        self._values[place] = self.layer.value @ self.hidden[place]
        self.num_projections += 1

    def _append(self) -> None:
        num_tokens = len(self.hidden)
        query = self.layer.query @ self.hidden[-1]
        self.hidden.append(self.layer.attend(query, self._keys[:num_tokens], self._values[:num_tokens]))


@dataclass(frozen=True)
class Pass:
    """One generation with a cache and one without, step by step in turns: a slow moment of the machine slows both."""

    cached: Generation
    uncached: Generation
    cached_s: list[float]
    uncached_s: list[float]

    @property
    def is_output_identical(self) -> bool:
        return np.array_equal(np.array(self.cached.hidden), np.array(self.uncached.hidden))


def _generate(layer: Layer, num_steps: int) -> Pass:
    made = Pass(Generation(layer, num_steps), Generation(layer, num_steps), [], [])
    for _ in range(num_steps):
        made.uncached_s.append(_timed(made.uncached.step_without_cache))
        made.cached_s.append(_timed(made.cached.step_with_cache))
    return made


def _timed(step: Callable[[], None]) -> float:
    """CPU seconds of this process: what else runs on the machine does not count."""
    start_ns = time.process_time_ns()
    step()
    return (time.process_time_ns() - start_ns) / 1e9


def _told(options: Namespace, passes: Sequence[Pass]) -> Demonstration:
    uncached_s = np.min([each.uncached_s for each in passes], axis=0)  # of the passes, the least disturbed
    cached_s = np.min([each.cached_s for each in passes], axis=0)
    is_same = all(each.is_output_identical for each in passes)
    num_projections = passes[0].cached.num_projections, passes[0].uncached.num_projections
    place, uncached = window_quartiles(uncached_s, _NUM_WINDOWS)
    cached = window_quartiles(cached_s, _NUM_WINDOWS)[1]
    lines = fitted_line(place, uncached), fitted_line(place, cached)
    total_s = float(uncached_s.sum()), float(cached_s.sum())
    speed_up = total_s[0] / total_s[1]
    rows = _rows(place, cached, uncached)
    findings = [
        f"{'The same' if is_same else 'NOT the same'} {count_text(options.steps)} outputs, bit for bit.",
        f"Without a cache each token takes {seconds_text(lines[0].slope)} longer than the one before: R² of "
        f"the line {lines[0].r_squared:.4f} (lower quartiles of {len(place)} windows, least of {len(passes)} passes).",
        f"With one it is {seconds_text(lines[1].slope)}, {ratio_text(lines[1].slope / lines[0].slope)} of that: its"
        " read.",
        f"In all {seconds_text(total_s[0])} against {seconds_text(total_s[1])} of CPU time: {speed_up:.1f}x. "
        f"{count_text(num_projections[1])} tokens were projected to keys and values, against "
        f"{count_text(num_projections[0])}.",
    ]
    return Demonstration(
        f"One attention layer of width {options.width}, {count_text(options.steps)} tokens",
        findings,
        ("position", "uncached", "cached", "ratio"),
        rows,
        [
            Curve("uncached", place.tolist(), uncached.tolist()),
            Curve("cached", place.tolist(), cached.tolist()),
            Curve("line", place.tolist(), (lines[0].slope * place + lines[0].intercept).tolist(), is_measured=False),
        ],
        "position (tokens)",
        "CPU time of a token (s)",
        {
            "num_steps": options.steps,
            "is_output_identical": is_same,
            "uncached_total_s": total_s[0],
            "cached_total_s": total_s[1],
            "speed_up": speed_up,
            "uncached_slope_s": lines[0].slope,
            "uncached_r_squared": lines[0].r_squared,
            "cached_slope_s": lines[1].slope,
            "num_projections": {"cached": num_projections[0], "uncached": num_projections[1]},
            "uncached_s": uncached_s.tolist(),
            "cached_s": cached_s.tolist(),
        },
    )


def _rows(place: Floats, cached: Floats, uncached: Floats) -> list[list[str]]:
    chosen = np.unique(np.linspace(0, len(place) - 1, _FLAT_ROWS).round().astype(int))
    return [
        [
            count_text(round(place[i])),
            seconds_text(uncached[i]),
            seconds_text(cached[i]),
            f"{uncached[i] / cached[i]:.1f}x",
        ]
        for i in chosen.tolist()
    ]
