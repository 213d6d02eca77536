"""Calibration: a known linear law is recovered, bends included, and unseen steps are predicted."""

import numpy as np
import pytest

from core.errors import InputError
from kvtwin.calibration import fit_linear, non_negative_least_squares
from sim.cost_model import StepWork
from sim.linear_cost import LinearCost

LAW = LinearCost(
    0.02,
    prefill_token_s=0.004,
    prefill_pair_s=2e-6,
    decode_sequence_s=0.005,
    context_token_s=3e-6,
    swap_block_s=1e-4,
    knots=[[4, -0.002], [16, -0.001]],
)


def steps(num_steps: int, seed: int) -> list[StepWork]:
    rng = np.random.default_rng(seed)
    return [
        StepWork(
            step,
            chunks=((int(rng.integers(1, 300)), int(rng.integers(0, 500))),) if rng.random() < 0.3 else (),
            num_decodes=int(rng.integers(1, 30)),
            decode_context_tokens=int(rng.integers(1, 8000)),
            num_swapped_blocks=int(rng.integers(0, 20)) if rng.random() < 0.1 else 0,
        )
        for step in range(num_steps)
    ]


def measured(works: list[StepWork]) -> np.ndarray:
    return np.array([LAW.step_ps(work) / 1e12 for work in works])


def test_a_noiseless_law_is_found_again():
    works = steps(400, seed=1)
    fit = fit_linear(works, measured(works))
    assert fit.held_out_mape_ratio < 1e-3
    assert abs(fit.held_out_bias_ratio) < 1e-3
    fresh = steps(200, seed=2)
    predicted = np.array([fit.model().step_ps(work) / 1e12 for work in fresh])
    np.testing.assert_allclose(predicted, measured(fresh), rtol=5e-3)


def test_noise_does_not_bias_the_sum():
    works = steps(600, seed=3)
    noisy = measured(works) * np.random.default_rng(4).lognormal(0.0, 0.1, len(works))
    fit = fit_linear(works, noisy)
    predicted = sum(fit.model().step_ps(work) / 1e12 for work in works)
    assert abs(predicted / noisy.sum() - 1) < 1e-3
    assert 0.03 < fit.held_out_mape_ratio < 0.2


def test_least_squares_stays_non_negative_and_equals_the_plain_solution_where_that_is_positive():
    rng = np.random.default_rng(6)
    features = rng.random((50, 4))
    truth = np.array([1.0, 0.5, 2.0, 0.25])
    np.testing.assert_allclose(non_negative_least_squares(features, features @ truth), truth, rtol=1e-6)
    assert (non_negative_least_squares(features, features @ np.array([1.0, -2.0, 1.0, 0.0])) >= 0).all()


def test_too_few_steps_are_refused():
    works = steps(10, seed=7)
    with pytest.raises(InputError, match="10 steps"):
        fit_linear(works, measured(works))
