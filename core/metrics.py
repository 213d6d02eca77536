"""The figures of a run, computed from the records it leaves behind: one pure function, `compute_metrics`.

A figure that the records do not define (no request finished, no prefix information in the trace, an unbounded pool)
is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.percentiles import summarize, summarize_weighted
from core.waste import WasteColumns, pool_shares, saturated, waste_ratios

__all__ = ["Records", "RequestColumns", "Slo", "StepColumns", "WasteColumns", "compute_metrics"]

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
class StepColumns:
    """One row per step in order of time, [num_steps]. `*_after` is the pool after the step's commit: what holds
    while the replica idles until the next step. Of several replicas: those of one after those of another."""

    start_s: Floats
    duration_s: Floats
    num_referenced_blocks: Ints
    num_cached_blocks: Ints
    num_evictions: Ints
    num_orphan_blocks: Ints  # registered blocks whose parent content is gone
    num_referenced_blocks_after: Ints
    num_cached_blocks_after: Ints
    num_orphan_blocks_after: Ints
    replica: Ints | None = None  # ascending; None: there is one

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> StepColumns:
        """The columns of `steps.npz`; raises KeyError naming a column that is missing."""
        names = [field.name for field in fields(cls) if field.name != "replica"]
        return cls(**{name: arrays[name] for name in names}, replica=arrays.get("replica"))

    def where(self, rows: NDArray[np.bool_]) -> StepColumns:
        """Only these steps."""
        columns = {field.name: getattr(self, field.name)[rows] for field in fields(self) if field.name != "replica"}
        return StepColumns(**columns, replica=None if self.replica is None else self.replica[rows])

    def since_first_eviction(self) -> StepColumns:
        """Without each replica's steps before its first eviction."""
        num_so_far = np.cumsum(self.num_evictions)
        if self.replica is not None:
            first = np.flatnonzero(np.diff(self.replica, prepend=-1))
            before = (num_so_far - self.num_evictions)[first]
            num_so_far = num_so_far - np.repeat(before, np.diff(first, append=len(self.replica)))
        return self.where(num_so_far > 0)

    def time_mean(self, during: Ints, after: Ints) -> float | None:
        """Time-weighted mean of a block count from the first step's start to the last step's end, of each replica."""
        until_next_s = np.append(np.diff(self.start_s), self.duration_s[-1:])
        idle_s = np.maximum(until_next_s - self.duration_s, 0.0)
        if self.replica is not None:
            idle_s[:-1][np.diff(self.replica) != 0] = 0.0
        total_s = self.duration_s.sum() + idle_s.sum()
        if total_s == 0:
            return None
        return float((np.dot(during, self.duration_s) + np.dot(after, idle_s)) / total_s)


@dataclass(frozen=True, slots=True)
class Slo:
    """A service level: a request meets it when neither latency is longer. A one-token output has a TPOT of 0 here."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Records:
    """Everything `compute_metrics` reads. `gap_s` and `gap_multiplicity` are the weighted multiset of ITL gaps."""

    requests: RequestColumns
    steps: StepColumns
    gap_s: Floats
    gap_multiplicity: Ints
    num_blocks: int | None  # None: unbounded
    block_size_tokens: int
    has_prefix_information: bool
    swapped_bytes: int = 0
    num_evictions: int = 0
    num_costly_evictions: int | None = None  # whose content was computed again; None: not attributed
    counts_orphans: bool = False
    slo: Slo | None = None
    waste: WasteColumns | None = None
    num_shared_references: Ints | None = None  # per step: references to blocks, beyond the first of each
    num_waiting: Ints | None = None  # per step, as `num_running`
    num_running: Ints | None = None


def compute_metrics(records: Records) -> dict[str, Any]:
    """The `metrics` block of `summary.json`."""
    requests = records.requests
    return {
        "ttft_s": summarize(requests.ttft_s()),
        "tpot_s": summarize(requests.tpot_s()),
        "itl_s": summarize_weighted(records.gap_s, records.gap_multiplicity),
        "e2e_s": summarize(requests.e2e_s()),
        "queue_s": summarize(requests.queue_s()),
        "normalized_latency_s": summarize(requests.normalized_latency_s()),
        **_throughput(requests, records.slo),
        **_prefix_hits(requests, records.has_prefix_information),
        "num_preemptions": int(requests.num_preemptions.sum()),
        "recomputed_tokens": int(requests.num_recomputed_tokens.sum()),
        "swapped_bytes": records.swapped_bytes,
        **_evictions(records),
        **_pool_use(records.steps, records.num_blocks),
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


def _pool_use(steps: StepColumns, num_blocks: int | None) -> dict[str, Any]:
    """Use counts referenced blocks only; blocks that are cached and free to evict are a series of their own."""
    columns = {
        "kv_utilization_ratio": (steps.num_referenced_blocks, steps.num_referenced_blocks_after),
        "kv_cached_ratio": (steps.num_cached_blocks, steps.num_cached_blocks_after),
    }
    if num_blocks is None or not steps.start_s.size:
        return {name: {"time_mean": None, "peak": None} for name in columns}
    return {
        name: {
            "time_mean": _ratio(steps.time_mean(during, after), num_blocks),
            "peak": max(int(during.max()), int(after.max())) / num_blocks,
        }
        for name, (during, after) in columns.items()
    }


def _evictions(records: Records) -> dict[str, Any]:
    """What evictions cost, and how much of the pool the policy had to choose from: the share that is cached and
    unreferenced, from the step of the first eviction on (before, nothing had to be chosen)."""
    num, num_costly, steps = records.num_evictions, records.num_costly_evictions, records.steps
    evicted_tokens = int(records.requests.num_recomputed_evicted_tokens.sum())
    evictable: dict[str, float | None] = {"time_mean": None, "min": None}
    if steps.num_evictions.any() and records.num_blocks is not None:
        late = steps.since_first_eviction()
        mean = late.time_mean(late.num_cached_blocks, late.num_cached_blocks_after)
        least = min(int(late.num_cached_blocks.min()), int(late.num_cached_blocks_after.min()))
        evictable = {"time_mean": _ratio(mean, records.num_blocks), "min": least / records.num_blocks}
    return {
        "num_evictions": num,
        "recomputed_evicted_tokens": None if num_costly is None else evicted_tokens,
        "num_costly_evictions": num_costly,
        "num_free_evictions": None if num_costly is None else num - num_costly,
        "evictable_ratio": evictable,
    }


def _orphans(records: Records) -> dict[str, float | None]:
    """Blocks that hold content which no look-up reaches, because the content before it is gone."""
    steps = records.steps
    if not records.counts_orphans or not steps.start_s.size:
        return {"time_mean": None, "peak": None}
    during, after = steps.num_orphan_blocks, steps.num_orphan_blocks_after
    return {"time_mean": steps.time_mean(during, after), "peak": max(int(during.max()), int(after.max()))}


def _ratio(value: float | None, whole: int) -> float | None:
    return None if value is None else value / whole


def _sharing_saved(records: Records) -> float | None:
    """Blocks saved by sharing over the blocks that there would be without, both integrated over the steps' time
    (PagedAttention, SOSP'23, section 6.3). None where no step used any.
    """
    shared, duration_s = records.num_shared_references, records.steps.duration_s
    if shared is None:
        return None
    total = float(np.dot(records.steps.num_referenced_blocks + shared, duration_s))
    return float(np.dot(shared, duration_s)) / total if total > 0 else None


def _memory(records: Records) -> dict[str, Any]:
    steps, size = records.steps, records.block_size_tokens
    num_tokens, duration_s = steps.num_referenced_blocks * size, steps.duration_s
    pool_tokens = None if records.num_blocks is None else records.num_blocks * size
    load = records.num_waiting, records.num_running
    return {
        "sharing_saved_ratio": _sharing_saved(records),
        **waste_ratios(records.waste, num_tokens, duration_s),
        "pool_share_ratio": pool_shares(records.waste, num_tokens, duration_s, pool_tokens),
        **saturated(records.waste, num_tokens, duration_s, pool_tokens, *load),
    }
