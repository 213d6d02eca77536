"""What the field says of scheduling, by its sign, on one small workload."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
from world import Run, Settings, simulate, trace_of

from policies.batching import Chunked, PrefillFirst
from sim.linear_cost import LinearCost
from traces.schema import Trace

COST = LinearCost(0.010, prefill_token_s=1e-4, decode_sequence_s=2e-4)
BASE = Settings(2000, block_size=16, caching=False)
CHUNKS = (128, 256, 512)


@cache
def long_prompts() -> Trace:
    """40 requests, about 3 a second, prompts of 500 to 2,000 tokens: the server is busy, not swamped."""
    draw = np.random.default_rng(0)
    arrivals = np.cumsum(draw.exponential(1 / 3, 40)).tolist()
    return trace_of(arrivals, draw.integers(500, 2000, 40).tolist(), draw.integers(40, 120, 40).tolist())


def run_of(settings: Settings) -> Run:
    return simulate(long_prompts(), settings, COST)


def mean_ttft_s(run: Run) -> float:
    return float(np.mean([request.first_token_ps - request.arrival_ps for request in run.requests()])) * 1e-12


def p99_itl_s(run: Run) -> float:
    return float(np.quantile(run.gaps_s(), 0.99))


def test_chunked_prefill_trades_first_tokens_for_even_gaps():
    """Sarathi-Serve, OSDI'24: prefill priority stalls decodes; the smaller the chunk, the shorter the worst gaps and
    the later the first token.
    """
    stalling = run_of(replace(BASE, budget=4096, batching=PrefillFirst))
    chunked = [run_of(replace(BASE, budget=chunk, batching=Chunked)) for chunk in CHUNKS]
    gaps, firsts = [p99_itl_s(run) for run in chunked], [mean_ttft_s(run) for run in chunked]
    assert gaps == sorted(gaps)
    assert firsts == sorted(firsts, reverse=True)
    assert 2 * gaps[-1] < p99_itl_s(stalling)
    assert firsts[-1] > mean_ttft_s(stalling)
