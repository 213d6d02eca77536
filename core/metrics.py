"""The figures of a run, computed from the records it leaves behind: one pure function, `compute_metrics`.

A figure that the records do not define (no request finished, no prefix information in the trace, an unbounded pool)
is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.gap_spans import GapSpans, summarize_spans
from core.percentiles import summarize
from core.step_totals import Level, Load, StepTotals
from core.waste import SlotUse

__all__ = ["Records", "RequestColumns", "Slo", "compute_metrics"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RequestColumns:
    """One row per request of the trace, [num_requests]; a time that never happened is nan."""

    request_id: Ints
    arrival_s: Floats
    first_scheduled_s: Floats
    first_token_s: Floats
    finish_s: Floats
    num_prompt_tokens: Ints
    num_output_tokens: Ints  # produced, by all samples; recomputed tokens are never counted twice
    num_cached_tokens: Ints  # prefix hit at first admission
    num_readmission_cached_tokens: Ints
    num_preemptions: Ints
    num_recomputed_tokens: Ints
    num_recomputed_evicted_tokens: Ints
    num_prefill_tokens: Ints
    outcome: NDArray[np.int8]  # index into outcome_names
    outcome_names: NDArray[np.str_]
    num_samples: Ints | None = None  # None: one each

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> RequestColumns:
        """The columns of `requests.npz`; raises KeyError naming a column that is missing."""
        return cls(
            **{
                field.name: arrays[field.name]
                for field in fields(cls)
                if field.name in arrays or field.default is MISSING
            }
        )

    def ended(self, outcome: str) -> NDArray[np.bool_]:
        """Which requests ended with this outcome, [num_requests]."""
        return np.isin(self.outcome, np.flatnonzero(self.outcome_names == outcome))

    def ttft_s(self) -> Floats:
        """First token − arrival (queueing included) of every request that produced a token."""
        return self.first_token_s - self.arrival_s

    def tpot_s(self) -> Floats:
        """(finish − first token) / (n − 1) of every finished request with n ≥ 2 tokens a sample, else nan."""
        num_tokens = self._tokens_a_sample()
        defined = self.ended("finished") & (num_tokens >= 2)
        num_gaps = np.where(defined, num_tokens - 1, 1)
        return np.where(defined, (self.finish_s - self.first_token_s) / num_gaps, np.nan)

    def e2e_s(self) -> Floats:
        """Finish − arrival of every finished request."""
        return np.where(self.ended("finished"), self.finish_s - self.arrival_s, np.nan)

    def normalized_latency_s(self) -> Floats:
        """E2E / output tokens a sample of every finished request (Orca, OSDI'22)."""
        return self.e2e_s() / np.maximum(self._tokens_a_sample(), 1)

    def _tokens_a_sample(self) -> Floats:
        """Samples of a request decode side by side, each a token a step."""
        num_samples = 1 if self.num_samples is None else np.maximum(self.num_samples, 1)
        return np.asarray(self.num_output_tokens / num_samples)

    def queue_s(self) -> Floats:
        """First scheduled − arrival of every admitted request."""
        return self.first_scheduled_s - self.arrival_s


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level: a request meets it when neither latency is longer. A one-token output has a TPOT of 0 here."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Records:
    """Everything `compute_metrics` reads: of all replicas together, but `steps` of each."""

    requests: RequestColumns
    steps: Sequence[StepTotals]
    gaps: Sequence[GapSpans]
    num_blocks: int | None  # None: unbounded
    block_size_tokens: int
    has_prefix_information: bool
    swapped_bytes: int = 0
    num_evictions: int = 0
    num_costly_evictions: int | None = None  # whose content was computed again; None: not attributed
    counts_orphans: bool = False
    slo: Slo | None = None


def compute_metrics(records: Records) -> dict[str, Any]:
    """The `metrics` block of `summary.json`."""
    requests = records.requests
    return {
        "ttft_s": summarize(requests.ttft_s()),
        "tpot_s": summarize(requests.tpot_s()),
        "itl_s": summarize_spans(records.gaps),
        "e2e_s": summarize(requests.e2e_s()),
        "queue_s": summarize(requests.queue_s()),
        "normalized_latency_s": summarize(requests.normalized_latency_s()),
        **_throughput(requests, records.slo),
        **_prefix_hits(requests, records.has_prefix_information),
        "num_preemptions": int(requests.num_preemptions.sum()),
        "recomputed_tokens": int(requests.num_recomputed_tokens.sum()),
        "swapped_bytes": records.swapped_bytes,
        **_evictions(records),
        "kv_utilization_ratio": _pool_use([steps.referenced for steps in records.steps], records.num_blocks),
        "kv_cached_ratio": _pool_use([steps.cached for steps in records.steps], records.num_blocks),
        "orphan_blocks": _orphans(records),
        **_memory(records),
        "outcomes": {
            str(name): int(np.count_nonzero(requests.outcome == index))
            for index, name in enumerate(requests.outcome_names)
        },
    }


def _throughput(requests: RequestColumns, slo: Slo | None) -> dict[str, Any]:
    """Rates over the makespan: first arrival to last finish. None when nothing finished."""
    ended_s = requests.finish_s[~np.isnan(requests.finish_s)]
    makespan_s = float(ended_s.max() - np.nanmin(requests.arrival_s)) if ended_s.size else 0.0
    finished = requests.ended("finished")
    output_tokens = int(requests.num_output_tokens.sum())
    met = finished & _meets(requests, slo) if slo else None
    # A request that its client cancelled is nobody's miss.
    num_due = int(np.count_nonzero(~requests.ended("cancelled")))
    return {
        "makespan_s": makespan_s or None,
        "output_tokens": output_tokens,
        "output_tokens_per_s": _per_s(output_tokens, makespan_s),
        "requests_per_s": _per_s(int(finished.sum()), makespan_s),
        "goodput_rps": None if met is None else _per_s(int(met.sum()), makespan_s),
        "slo_attainment_ratio": None if met is None or not num_due else int(met.sum()) / num_due,
    }


def _meets(requests: RequestColumns, slo: Slo) -> NDArray[np.bool_]:
    return np.asarray((requests.ttft_s() <= slo.ttft_s) & (np.nan_to_num(requests.tpot_s(), nan=0.0) <= slo.tpot_s))


def _per_s(count: int, duration_s: float) -> float | None:
    return count / duration_s if duration_s > 0 else None


def _prefix_hits(requests: RequestColumns, has_prefix_information: bool) -> dict[str, Any]:
    """Hits at first admission over the prompt tokens of admitted requests; hits after a preemption stay apart."""
    admitted = ~np.isnan(requests.first_scheduled_s)
    hit_tokens = int(requests.num_cached_tokens[admitted].sum())
    prompt_tokens = int(requests.num_prompt_tokens[admitted].sum())
    defined = has_prefix_information and prompt_tokens > 0
    return {
        "prefix_hit_ratio": hit_tokens / prompt_tokens if defined else None,
        "prefix_hit_tokens": hit_tokens,
        "readmission_hit_tokens": int(requests.num_readmission_cached_tokens.sum()),
        "prompt_tokens": prompt_tokens,
    }


def _pool_use(levels: Sequence[Level], num_blocks: int | None) -> dict[str, float | None]:
    """Use counts referenced blocks only; blocks that are cached and free to evict are a series of their own."""
    total = Level.total(levels)
    return {"time_mean": _ratio(total.time_mean, num_blocks), "peak": _ratio(total.most, num_blocks)}


def _evictions(records: Records) -> dict[str, Any]:
    """What evictions cost, and how much of the pool the policy had to choose from: the share that is cached and
    unreferenced, from the step of the first eviction on (before, nothing had to be chosen)."""
    num, num_costly = records.num_evictions, records.num_costly_evictions
    evicted_tokens = int(records.requests.num_recomputed_evicted_tokens.sum())
    cached = Level.total([steps.late_cached for steps in records.steps if steps.late_cached is not None])
    return {
        "num_evictions": num,
        "recomputed_evicted_tokens": None if num_costly is None else evicted_tokens,
        "num_costly_evictions": num_costly,
        "num_free_evictions": None if num_costly is None else num - num_costly,
        "evictable_ratio": {
            "time_mean": _ratio(cached.time_mean, records.num_blocks),
            "min": _ratio(cached.least, records.num_blocks),
        },
    }


def _orphans(records: Records) -> dict[str, float | None]:
    """Blocks that hold content which no look-up reaches, because the content before it is gone."""
    total = Level.total([steps.orphans for steps in records.steps]) if records.counts_orphans else Level()
    return {"time_mean": total.time_mean, "peak": total.most}


def _ratio(value: float | None, whole: int | None) -> float | None:
    return None if value is None or whole is None else value / whole


def _sharing_saved(load: Load) -> float | None:
    """Blocks saved by sharing over the blocks that there would be without (PagedAttention, SOSP'23, section 6.3). None
    where no step used any.
    """
    return _ratio(load.shared_references, load.referenced_blocks + load.shared_references or None)


def _memory(records: Records) -> dict[str, Any]:
    """Where the slots of the pool went: in all steps, and under full load, without a warm-up in which nobody waits yet
    and the drain in which nobody waits any more.
    """
    size = records.block_size_tokens
    pool_tokens = None if records.num_blocks is None else records.num_blocks * size
    load = Load.total([steps.load for steps in records.steps])
    waits = [steps.saturated for steps in records.steps if steps.saturated is not None]
    saturated = Load.total(waits)
    peaks = [steps.peak_waste_ratio for steps in records.steps if steps.peak_waste_ratio is not None]
    slots = SlotUse.of(load, size)
    return {
        "sharing_saved_ratio": _sharing_saved(load),
        "waste_ratio": slots.waste_ratios(),
        "waste_total_ratio": {"time_mean": slots.waste_ratio(), "peak": max(peaks, default=None)},
        "pool_share_ratio": slots.pool_shares(pool_tokens),
        "saturated_share_ratio": SlotUse.of(saturated, size).pool_shares(pool_tokens),
        "saturated_num_running": _ratio(saturated.running, saturated.busy_ps or None),
    }
