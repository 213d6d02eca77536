"""Observed values as the tables of quantiles that recipes hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

PROBABILITIES = (
    *(0, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    *(0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.95, 0.965, 0.975, 0.985, 0.99, 0.995, 0.998, 0.999, 1),
)
# Gaps have longer tails, and a coefficient of variation hangs on the few longest of them.
TAIL_PROBABILITIES = (*PROBABILITIES[:-1], 0.9995, 0.9998, 0.9999, 1)
FEW_PROBABILITIES = (0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1)


def table(values: npt.NDArray[Any], probabilities: tuple[float, ...] = PROBABILITIES) -> dict[str, Any]:
    """The distribution `empirical` of a recipe: quantiles (linear between order statistics), to 6 digits."""
    if len(np.unique(values)) == 1:
        return {"kind": "fixed", "value": plain(float(values[0]))}
    quantiles = np.maximum.accumulate([plain(float(value)) for value in np.quantile(values, probabilities)])
    return {
        "kind": "empirical",
        "probabilities": [plain(float(probability)) for probability in probabilities],
        "values": [plain(float(value)) for value in quantiles],
    }


def plain(value: float) -> float | int:
    """A number to 6 significant digits, as an integer where it is one."""
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded == int(rounded) else rounded
