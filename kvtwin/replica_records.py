"""What one replica leaves behind: columns and sums, which may travel from one process to another."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from core.columns import charge_arrays, gap_arrays, request_arrays, requests_of, step_arrays
from core.even_plans import even_plans
from core.gap_spans import GapSpans, gap_spans
from core.recorder import Recorder
from core.request_log import RequestLog
from core.scheduler import Scheduler
from core.step_totals import StepTotals
from kvtwin.decisions_file import decisions_jsonl
from kvtwin.lazy_arrays import Arrays, LazyArrays


@dataclass(frozen=True)
class ReplicaRecords:
    """`requests` has a row for each request that came here, by id; `steps` and `gaps` have one for each step, or none
    under `steps=false`. Figures are made of `totals` and `gap_spans`.

    `charges`: which evictions were paid for by whom, None where none was; `num_costly_evictions` is None where
    evictions are not charged, `num_moved_blocks` where none can ever move. `decisions` are those of `decisions=full`.
    `turned_away`: the first request that could never run, and why, if all that came were turned away.
    """

    requests: Arrays
    steps: Arrays
    gaps: Arrays
    totals: StepTotals
    gap_spans: tuple[GapSpans, ...]
    num_steps: int
    charges: Arrays | None
    num_decisions: int
    digest: str | None
    decisions: bytes | None
    num_plans: int
    num_refused_spans: int
    num_swapped_blocks: int
    num_evictions: int
    num_costly_evictions: int | None
    num_swap_fallbacks: int
    num_moved_blocks: int | None
    counts_orphans: bool
    goes_by: frozenset[str]
    tells_categories_apart: bool
    turned_away: tuple[int, str] | None


def replica_records(scheduler: Scheduler, keeps_decisions: bool) -> ReplicaRecords:
    """The records of a scheduler whose run has ended."""
    recorder, log, tables = scheduler.recorder, scheduler.log, scheduler.tables
    taken, policies, attribution = requests_of(scheduler), scheduler.policies, tables.pool.attribution
    num_steps, num_plans = recorder.num_steps, recorder.num_plans
    totals, gap_spans = _condensed(recorder, taken)
    kept, all_of = (recorder, taken) if recorder.condenser is None else (Recorder(), RequestLog())
    return ReplicaRecords(
        requests=request_arrays(taken),
        steps=LazyArrays(partial(step_arrays, kept, all_of, tables.pool.num_blocks)),
        gaps=LazyArrays(partial(gap_arrays, kept)),
        totals=totals,
        gap_spans=gap_spans,
        num_steps=num_steps,
        charges=charge_arrays(attribution.charges) if attribution is not None and attribution.num_costly else None,
        num_decisions=len(log),
        digest=log.digest() if len(log) else None,
        decisions=decisions_jsonl(log) if keeps_decisions else None,
        num_plans=num_plans,
        num_refused_spans=scheduler.span_limit.num_refused + recorder.num_unpriced_spans,
        num_swapped_blocks=sum(recorder.swapped_blocks.values()),
        num_evictions=tables.pool.num_evictions,
        num_costly_evictions=None if attribution is None else attribution.num_costly,
        num_swap_fallbacks=recorder.num_swap_fallbacks,
        # Only runs that must stay whole ever move.
        num_moved_blocks=sum(recorder.moved_blocks.values()) if tables.is_contiguous else None,
        counts_orphans=tables.pool.counts_orphans and not tables.eviction_is_prefix_closed,
        goes_by=frozenset().union(*(policy.goes_by for policy in policies.all())),
        tells_categories_apart=any(getattr(policy, "tells_categories_apart", False) for policy in policies.others),
        turned_away=_turned_away(taken),
    )


def _condensed(recorder: Recorder, requests: RequestLog) -> tuple[StepTotals, tuple[GapSpans, ...]]:
    if recorder.condenser is not None:
        return recorder.condenser.finish(recorder)
    plans, totals = even_plans(recorder), StepTotals()
    totals.add(plans, recorder, requests)
    return totals, (gap_spans(plans, recorder.late_gaps_ps),)


def _turned_away(requests: RequestLog) -> tuple[int, str] | None:
    is_all = 0 < requests.num_rejected == len(requests)
    return requests.first_rejected if is_all else None
