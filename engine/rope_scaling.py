"""How models stretch their rotary positions to contexts longer than those they were trained on first."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """`kind` is one of SCALINGS; the numbers have the names of Hugging Face's `rope_scaling` (transformers 4.x).

    attention_factor multiplies cos and sin. divisors: one a pair of dimensions, as GGUF files store llama3's.
    """

    kind: str
    factor: float
    original_positions: int = 0
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()


def rope_frequencies(base: float, rotated_dim: int, scaling: RopeScaling | None = None) -> list[float]:
    """Radians a position, of each of the rotated_dim / 2 pairs of dimensions."""
    plain = [base ** (-2 * pair / rotated_dim) for pair in range(rotated_dim // 2)]
    return plain if scaling is None else SCALINGS[scaling.kind](plain, base, scaling)


def _linear(frequencies: list[float], base: float, scaling: RopeScaling) -> list[float]:
    """Position interpolation (arXiv 2306.15595)."""
    return [frequency / scaling.factor for frequency in frequencies]


def _divisors(frequencies: list[float], base: float, scaling: RopeScaling) -> list[float]:
    return [frequency / divisor for frequency, divisor in zip(frequencies, scaling.divisors, strict=True)]


def _llama3(frequencies: list[float], base: float, scaling: RopeScaling) -> list[float]:
    """Llama 3.1: slow pairs are interpolated, fast ones kept, those between blended by turns in the first context."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return [
        _blended(frequency, scaling.factor, (frequency * scaling.original_positions / math.tau - low) / (high - low))
        for frequency in frequencies
    ]


def _yarn(frequencies: list[float], base: float, scaling: RopeScaling) -> list[float]:
    """YaRN (arXiv 2309.00071, section 3.2): as above, blended by the pair's number between two bounds."""
    rotated_dim = 2 * len(frequencies)

    def pair_with(num_turns: float) -> float:
        return rotated_dim * math.log(scaling.original_positions / (num_turns * math.tau)) / (2 * math.log(base))

    first = max(math.floor(pair_with(scaling.beta_fast)), 0)
    last = min(math.ceil(pair_with(scaling.beta_slow)), rotated_dim - 1)
    width = max(last - first, 0.001)
    return [
        _blended(frequency, scaling.factor, 1 - (pair - first) / width) for pair, frequency in enumerate(frequencies)
    ]


def _blended(frequency: float, factor: float, share_kept: float) -> float:
    kept = min(max(share_kept, 0.0), 1.0)
    return kept * frequency + (1 - kept) * frequency / factor


SCALINGS: dict[str, Callable[[list[float], float, RopeScaling], list[float]]] = {
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "divisors": _divisors,
}
