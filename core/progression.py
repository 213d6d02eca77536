"""Steps of which each takes just so much longer than the one before it: when they end, and how many have begun."""

from __future__ import annotations

from math import sqrt
from typing import Final

from mypy_extensions import i64

# Below these a total has less than 63 bits. Machine code multiplies 30 bits at a time, where it may be more.
_SHORT_STEPS: Final = 1 << 16
_SHORT_FIRST_PS: Final = 1 << 45
_SHORT_GROWTH_PS: Final = 1 << 30


def even_total_ps(first_ps: int, growth_ps: int, num_steps: int) -> int:
    """How long so many steps take when each takes `growth_ps` longer than the one before it."""
    if num_steps < _SHORT_STEPS and first_ps < _SHORT_FIRST_PS and growth_ps < _SHORT_GROWTH_PS:
        return _total_ps(first_ps, growth_ps, num_steps)
    return num_steps * first_ps + growth_ps * (num_steps * (num_steps - 1) // 2)


def _total_ps(first_ps: i64, growth_ps: i64, num_steps: i64) -> i64:
    """As `even_total_ps`, in the processor's own words."""
    return num_steps * first_ps + growth_ps * ((num_steps * (num_steps - 1)) >> 1)


def even_num_begun(first_ps: int, growth_ps: int, elapsed_ps: int) -> int:
    """Steps of an endless even span that had begun before `elapsed_ps` had gone by; at least 1."""
    if elapsed_ps <= first_ps:
        return 1
    if growth_ps == 0:
        return (elapsed_ps - 1) // first_ps + 1
    # Twice the total of n steps is growth n^2 + slope n. Solved in floats, perhaps a step off, and then made exact.
    slope, doubled = float(2 * first_ps - growth_ps), 2.0 * elapsed_ps
    num_ended = int(2.0 * doubled / (slope + sqrt(slope * slope + 4.0 * growth_ps * doubled)))
    while even_total_ps(first_ps, growth_ps, num_ended) >= elapsed_ps:
        num_ended -= 1
    while even_total_ps(first_ps, growth_ps, num_ended + 1) < elapsed_ps:
        num_ended += 1
    return num_ended + 1
