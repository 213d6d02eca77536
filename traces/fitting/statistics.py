"""The statistics by which a trace and one made from its recipe are compared."""

from __future__ import annotations

import numpy as np

from traces.block_references import BlockReferences, block_references
from traces.fitting.prefix_forest import prefix_forest
from traces.fitting.ranks import rank_correlation
from traces.ragged import Ragged
from traces.schema import Trace
from traces.sharing import ceiling_of, prefix_distances
from traces.stack_distance import COLD
from traces.statistics import Distribution, arrivals_of

WINDOW_S = 60
LEAST_WINDOWS = 10


def statistics(trace: Trace, capacities_blocks: tuple[int, ...]) -> dict[str, float]:
    """Rate and burstiness of arrivals, lengths, and prefix hits of caches of some blocks and of one without bound.

    What is not defined for the trace is left out. O(blocks log blocks).
    """
    arrivals = arrivals_of(trace)
    figures = {"rate_rps": arrivals.mean_rate_rps, "arrival_cv": arrivals.gap_cv, **_dispersion(trace)}
    for what, tokens in (("prompt_tokens", trace.num_prompt_tokens), ("output_tokens", trace.num_output_tokens)):
        lengths = Distribution.of(tokens)
        figures |= {f"{what}_{name}": getattr(lengths, name) for name in ("p50", "p90", "p99", "mean")}
    figures["length_rank_correlation"] = rank_correlation(trace.num_prompt_tokens, trace.num_output_tokens)
    if trace.has_prefix_information:
        figures |= _sharing(block_references(trace), capacities_blocks)
    return {name: figure for name, figure in figures.items() if figure is not None}


def _dispersion(trace: Trace) -> dict[str, float | None]:
    """Variance over mean of the requests in a minute (Poisson: 1)."""
    num_windows = int(trace.span_s // WINDOW_S)
    if num_windows < LEAST_WINDOWS:
        return {}
    since_s = (trace.arrival_ps - trace.arrival_ps[0]) / 1e12
    counts = np.bincount((since_s // WINDOW_S).astype(np.int64))[:num_windows]
    return {f"dispersion_of_counts_{WINDOW_S}s": float(counts.var() / counts.mean())}


def _sharing(references: BlockReferences, capacities_blocks: tuple[int, ...]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {"infinite_cache_hit_ratio": ceiling_of(references).hit_token_ratio}
    depth = prefix_forest(Ragged(references.blocks, references.offsets)).num_shared
    figures |= {f"hit_blocks_p{at}": float(np.percentile(depth, at)) for at in (50, 75, 90, 99)}
    distances = prefix_distances(references)
    for capacity in capacities_blocks:
        hits = (distances != COLD) & (distances <= capacity)
        hit_tokens = int(references.num_tokens[hits].sum())
        figures[f"lru_hit_ratio_{capacity}_blocks"] = hit_tokens / int(references.num_tokens.sum())
    return figures
