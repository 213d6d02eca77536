"""What `kvtwin trace info` tells of a trace, as JSON: every figure with its unit in its key."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from core.errors import InputError
from traces.block_references import BlockReferences, block_references
from traces.ragged import IntArray
from traces.schema import Trace
from traces.sharing import (
    ceiling_of,
    longest_shared_prefix_tokens,
    lru_hit_blocks,
    prefix_distances,
    reuse_times_ps,
)
from traces.stack_distance import COLD, stack_distances
from traces.statistics import (
    PS_PER_S,
    Distribution,
    arrivals_of,
    log2_histogram,
    num_requests_by_value,
    oddities_of,
    sessions_of,
)

SCHEMA = "kvtwin.trace_info/1"
_MOST_SEARCHED_TOKENS = 1024  # of a shared prefix that no block could tell
_NUM_CAPACITIES = 60


def describe(trace: Trace, format_name: str, block_tokens: int | None = None) -> dict[str, Any]:
    """All figures of a trace. `sharing` is None where the trace says nothing on prefixes: then hits are undefined.

    `block_tokens`: for prompts given as text (default 16). Raises InputError for another size than a trace's own.
    """
    sessions = sessions_of(trace)
    return {
        "schema": SCHEMA,
        "name": trace.name,
        "format": format_name,
        "licence": trace.licence or None,
        "sha256": trace.sha256,
        "num_requests": trace.num_requests,
        "num_dropped": trace.num_dropped,
        "arrivals": asdict(arrivals_of(trace)),
        "prompt_tokens": asdict(Distribution.of(trace.num_prompt_tokens)),
        "output_tokens": asdict(Distribution.of(trace.num_output_tokens)),
        "sessions": None if sessions is None else asdict(sessions),
        "num_requests_by_tenant": _by_value(trace.tenant),
        "num_requests_by_priority": _by_value(trace.priority),
        "num_requests_by_category": _by_category(trace),
        "sharing": sharing(trace, block_tokens) if trace.has_prefix_information else None,
        "oddities": oddities_of(trace),
    }


def sharing(trace: Trace, block_tokens: int | None = None) -> dict[str, Any]:
    """How much the prompts share, block by block."""
    references = block_references(trace, block_tokens)
    ceiling = ceiling_of(references)
    distances, is_chained = _reuse_distances(references)
    warm = distances[distances != COLD]
    times_ps = reuse_times_ps(references)
    no_hits = ceiling.engine_hit_blocks == 0 and trace.prompt_segments is not None
    most = min(_MOST_SEARCHED_TOKENS, references.block_tokens)
    return {
        **asdict(ceiling),
        "engine_hit_tokens": ceiling.engine_hit_tokens,
        "hit_block_ratio": ceiling.hit_block_ratio,
        "hit_token_ratio": ceiling.hit_token_ratio,
        "engine_hit_token_ratio": ceiling.engine_hit_token_ratio,
        "ids_are_chained": is_chained,
        "answers_are_told": trace.output_segments is not None,
        "longest_shared_prefix_tokens": longest_shared_prefix_tokens(trace, most) if no_hits else None,
        "blocks_per_request": asdict(Distribution.of(references.num_blocks)),
        "num_first_references": int(np.count_nonzero(distances == COLD)),
        "reuse_distance_blocks": _histogram(warm),
        "reuse_time_s": _histogram(times_ps[times_ps >= 0] / PS_PER_S),
        "lru_hits": _curve(distances, references),
    }


def _reuse_distances(references: BlockReferences) -> tuple[IntArray, bool]:
    """Distances as requests see them; where ids are not chained, those of the plain stream of blocks."""
    try:
        return prefix_distances(references), True
    except InputError:
        return stack_distances(references.blocks), False


def _curve(distances: IntArray, references: BlockReferences) -> list[dict[str, float]]:
    """Hits of an LRU cache by capacity, from the longest request to where all that can hit does."""
    least, most = int(references.num_blocks.max()), max(int(distances.max(initial=1)), 1)
    capacities = np.unique(np.geomspace(min(least, most), most, _NUM_CAPACITIES).round().astype(np.int64))
    hits = lru_hit_blocks(distances, capacities)
    return [
        {"capacity_blocks": capacity, "hit_blocks": hit, "hit_block_ratio": hit / references.num_references}
        for capacity, hit in zip(capacities.tolist(), hits.tolist(), strict=True)
    ]


def _histogram(values: npt.NDArray[Any]) -> list[dict[str, int]]:
    return [{"up_to": bound, "num_references": count} for bound, count in log2_histogram(values)]


def _by_value(column: IntArray | None) -> dict[str, int] | None:
    if column is None:
        return None
    return {str(value): count for value, count in num_requests_by_value(column).items()}


def _by_category(trace: Trace) -> dict[str, int] | None:
    if trace.category is None:
        return None
    names = (*trace.category_names, "none")  # code -1 finds the last
    return {names[code]: count for code, count in num_requests_by_value(trace.category).items()}
