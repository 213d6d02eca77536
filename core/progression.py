"""Steps of which each takes just so much longer than the one before it: when they end, and how many have begun."""

from __future__ import annotations

from math import sqrt


def even_total_ps(first_ps: int, growth_ps: int, num_steps: int) -> int:
    """How long so many steps take when each takes `growth_ps` longer than the one before it."""
    return num_steps * first_ps + growth_ps * (num_steps * (num_steps - 1) // 2)


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
