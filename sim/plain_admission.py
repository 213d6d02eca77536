"""Admissions that plain steps can make: whoever starts with a prompt of its own, or has one to compute again."""

from __future__ import annotations

from typing import Final

from core.growth import first_chunk
from core.interfaces import Admission, BatchRules
from core.plan import Chunk
from core.prefix_hit import NO_HIT
from core.request import Request, Status
from core.scheduler import Scheduler

NOT_PLAIN: Final = -1
_DONE: Final = Status.DONE  # to ask an Enum for a member takes longer
_REJECT: Final = Admission.REJECT
_WAIT: Final = Admission.WAIT


class PlainAdmissions:
    """As `core.admission.Admissions`, without a plan. `rejected` are those whom the policy turned away."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tables = scheduler.tables
        self._pool = scheduler.tables.pool
        self._running = scheduler.running
        self._waiting = scheduler.waiting
        self._admission = scheduler.policies.admission
        self.rejected: list[Request] = []

    def admit(self, chunks: list[Chunk], budget: int, rules: BatchRules) -> int:
        """Admits heads of the queue, adding to `chunks`, until one has to wait or is not plain. Returns the budget that
        is left in the latter case, else 0.
        """
        running, waiting, max_num_seqs = self._running, self._waiting, self._scheduler.config.max_num_seqs
        while budget > 0 and waiting.entries and running.num_sequences < max_num_seqs:
            request = waiting.head
            num_new = self._start(request, budget, rules)
            if num_new == NOT_PLAIN:
                return budget
            if num_new == 0 and request.status is not _DONE:
                return 0
            budget -= num_new
            if num_new:
                lead = request.live[0]
                chunks.append(Chunk(lead, lead.stored_computed, num_new))
        return 0

    def _start(self, request: Request, budget: int, rules: BatchRules) -> int:
        """As `Admissions` would. Returns the tokens scheduled; 0 if it must wait; NOT_PLAIN, with nothing changed."""
        if request.num_samples > 1 or request.swapped is not None or request.is_beam_search:
            return NOT_PLAIN
        scheduler, tables, pool, view = self._scheduler, self._tables, self._pool, self._scheduler.view
        lead, size = request.live[0], tables.block_size
        hit = tables.find_prefix(lead) if tables.prefix_caching else NO_HIT
        num_hit, num_known = hit.num_tokens, lead.stored_known
        num_new = num_known - num_hit
        if num_new == 1 and num_known > request.num_prompt_tokens:
            return NOT_PLAIN  # it goes straight on with decoding
        if num_new > budget or rules.chunk_limit_tokens:
            num_new = first_chunk(lead, num_hit, budget, rules)
            if num_new == 0:
                return 0
        num_free_needed = hit.num_idle - num_hit // size
        num_needed = num_free_needed - (-(num_hit + num_new) // size)
        view.num_full_blocks = num_free_needed - (-num_known // size)
        answer = self._admission.admit(request, num_needed, view)
        if answer is _REJECT:
            scheduler.admissions.turn_away(request)
            self.rejected.append(request)
            return 0
        if answer is _WAIT or num_needed > pool.num_available:
            return 0
        if num_hit:
            tables.adopt(lead, hit, readmission=request.status is Status.PREEMPTED)
        scheduler.admissions.enter(request, num_hit, scheduler.now_ps)
        lead.rank = request.rank
        self._running.prefills[lead.rank] = lead
        if pool.attribution is not None:
            pool.attribution.look_ahead(lead, num_hit)
        tables.extend(lead, num_new)
        if tables.prefix_caching:
            scheduler.publication.scheduled(lead, num_new)
        return num_new
