"""Fits the linear cost model to measured steps, and says how well it predicts steps it has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.errors import InputError
from kvtwin.formatting import counted
from sim.cost_model import StepWork
from sim.linear_cost import LinearCost

Floats = NDArray[np.float64]

KNOTS_TOKENS = (4, 16, 64)  # where the cost per new token may bend: small batches are bound by reading the weights
NUM_BLOCKS_OF_TIME = 10
HELD_OUT_EVERY = 3  # of the blocks of time, every third is held out
MIN_STEPS = 60


@dataclass(frozen=True)
class Fit:
    """The coefficients (arguments of `LinearCost`), and the errors on steps held out in whole blocks of time."""

    coefficients: dict[str, Any]
    held_out_mape_ratio: float
    held_out_bias_ratio: float  # of the sum: predicted / measured - 1
    num_steps: int

    def model(self) -> LinearCost:
        return LinearCost(**self.coefficients)


def fit_linear(works: Sequence[StepWork], durations_s: Floats) -> Fit:
    """Non-negative least squares, weighted by 1/duration so that short steps count too, rescaled to no bias of the sum.

    Held-out errors come from a fit on the other blocks of time: neighbouring steps are too alike to test one another.
    Raises InputError when there are too few steps to tell the coefficients apart.
    """
    check_enough_steps(len(works))
    features = np.array([_features(work) for work in works])
    block = np.arange(len(works)) * NUM_BLOCKS_OF_TIME // len(works)
    held_out = block % HELD_OUT_EVERY == 1
    trial = _solve(features[~held_out], durations_s[~held_out])
    predicted = features[held_out] @ trial
    measured = durations_s[held_out]
    return Fit(
        _coefficients(_solve(features, durations_s)),
        held_out_mape_ratio=float(np.mean(np.abs(predicted / measured - 1))),
        held_out_bias_ratio=float(predicted.sum() / measured.sum() - 1),
        num_steps=len(works),
    )


def check_enough_steps(num_steps: int) -> None:
    """Raises InputError when so few steps cannot tell the coefficients apart."""
    if num_steps < MIN_STEPS:
        raise InputError(
            f"calibration sees {counted(num_steps, 'step')}; expected at least {MIN_STEPS}: "
            "raise its trace's limit or lengths"
        )


def _features(work: StepWork) -> list[float]:
    """One, the new tokens in each segment between knots, then the terms of `LinearCost`."""
    num_new = work.num_prefill_tokens + work.num_decodes
    edges = (0, *KNOTS_TOKENS, num_new + KNOTS_TOKENS[-1])
    segments = [min(max(num_new - low, 0), high - low) for low, high in pairwise(edges)]
    return [
        1.0,
        *segments,
        work.prefill_pairs,
        work.num_decodes,
        work.decode_context_tokens,
        work.num_swapped_blocks,
        work.num_copied_blocks,
    ]


def _solve(features: Floats, durations_s: Floats) -> Floats:
    weights = 1.0 / durations_s
    solution = non_negative_least_squares(features * weights[:, None], np.ones_like(durations_s))
    total = float((features @ solution).sum())
    return solution * (float(durations_s.sum()) / total)


def _coefficients(solution: Floats) -> dict[str, Any]:
    """Slopes of the segments become one slope and its changes at the knots."""
    num_segments = len(KNOTS_TOKENS) + 1
    slopes = solution[1 : 1 + num_segments]
    pair_s, sequence_s, context_s, swap_s, copy_s = map(float, solution[1 + num_segments :])
    return {
        "constant_s": float(solution[0]),
        "prefill_token_s": float(slopes[0]),
        "prefill_pair_s": pair_s,
        "decode_sequence_s": float(slopes[0]) + sequence_s,
        "context_token_s": context_s,
        "swap_block_s": swap_s,
        "copy_block_s": copy_s,
        "knots": [[knot, float(change)] for knot, change in zip(KNOTS_TOKENS, np.diff(slopes), strict=True)],
    }


def non_negative_least_squares(features: Floats, target: Floats, num_sweeps: int = 2000) -> Floats:
    """min ||features x - target|| with x >= 0, by cyclic coordinate descent on the normal equations.

    Converges for any convex quadratic; here are about ten unknowns, so a solver package is not worth its weight.
    """
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    unit = features / scale
    gram, moment = unit.T @ unit, unit.T @ target
    solution = np.zeros(features.shape[1])
    for _ in range(num_sweeps):
        largest_move = 0.0
        for place in range(len(solution)):
            if gram[place, place] == 0:
                continue
            gradient = gram[place] @ solution - moment[place]
            updated = max(0.0, solution[place] - gradient / gram[place, place])
            largest_move = max(largest_move, abs(updated - solution[place]))
            solution[place] = updated
        if largest_move < 1e-12 * max(1.0, float(np.abs(solution).max())):
            break
    result: Floats = solution / scale
    return result
