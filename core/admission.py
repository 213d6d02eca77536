"""Admission: the head of the queue starts, or comes back, when there is room for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from core.decision_log import Event
from core.errors import InputError
from core.growth import first_chunk
from core.interfaces import Admission, AdmissionPolicy, BatchRules
from core.plan import Chunk, StepPlan
from core.prefix_hit import NO_HIT, PrefixHit
from core.request import Request, Sequence, Status

if TYPE_CHECKING:
    from core.scheduler import Scheduler

_ADMIT: Final = Event.ADMIT  # to ask an Enum for a member takes longer
_RUNNING: Final = Status.RUNNING


class Admissions:
    """Admits from the head of the queue until something is short; nothing behind a blocked head is tried.

    A refused head changes nothing. `reject` ends a request that the admission policy turns away.
    """

    def __init__(self, scheduler: Scheduler, reject: Callable[[Request, str], None]) -> None:
        self._running = scheduler.running
        self._waiting = scheduler.waiting
        self._tables = scheduler.tables
        self._attribution = scheduler.tables.pool.attribution
        self._scheduler = scheduler
        self._view = scheduler.view
        self._publication = scheduler.publication
        self._log = scheduler.log
        self._max_num_seqs = scheduler.config.max_num_seqs
        self._reject = reject
        self._policy = scheduler.policies.admission
        self._tells_admissions = type(self._policy).on_admit is not AdmissionPolicy.on_admit

    @property
    def is_anybody_swapped_out(self) -> bool:
        return self._tables.swapping.num_requests > 0

    def admit(
        self, plan: StepPlan, rules: BatchRules, budget: int, may_come: Callable[[Request], bool] = lambda request: True
    ) -> None:
        """Adds to the plan whom the remaining token budget, the slots and the pool allow, while the head `may_come`."""
        if budget <= 0 or not self._waiting or self._running.num_sequences >= self._max_num_seqs:
            return
        for request in self._waiting.in_turn():
            has_slots = self._running.num_sequences + len(request.live) <= self._max_num_seqs
            if budget <= 0 or not has_slots or not may_come(request):
                return
            come = self._start if request.swapped is None else self._swap_in
            num_new = come(request, plan, rules, budget)
            if num_new == 0 and request.status is not Status.DONE:
                return
            budget -= num_new

    def _start(self, request: Request, plan: StepPlan, rules: BatchRules, budget: int) -> int:
        """Admits a request whose prompt is to be computed. Returns the tokens scheduled; 0 if it must wait."""
        tables = self._tables
        lead = request.live[0]
        hit = tables.look_up(lead) if tables.prefix_caching else NO_HIT
        num_new = first_chunk(lead, hit.num_tokens, budget, rules)
        if num_new == 0:
            return 0
        num_held = hit.num_tokens // tables.block_size
        needed = tables.num_needed(lead, num_new, hit.num_tokens, num_held) + hit.num_idle
        self._view.num_full_blocks = tables.num_needed_for_all(lead, num_held) + hit.num_idle
        if not self._may_admit(request, needed, plan):
            return 0
        if hit.num_tokens:
            tables.adopt(lead, hit, readmission=request.status is Status.PREEMPTED)
        self._enter_running(request, plan, hit)
        self._running.start(lead, request.rank)
        self._begin_chunk(lead, num_new, plan)
        return num_new

    def _swap_in(self, request: Request, plan: StepPlan, rules: BatchRules, budget: int) -> int:
        """Admits a swapped-out request: its blocks come back, and its sequences go on in this very step."""
        tables = self._tables
        assert request.swapped is not None
        swapped = request.swapped.sequences
        restoration = tables.swapping.find(request)
        if request.is_beam_search and restoration.num_computed != request.swapped.num_computed:
            tables.swapping.forget(request)
            request.restart_search()
            return self._start(request, plan, rules, budget)
        needed = num_full = restoration.num_blocks
        news: list[int] = []
        for sequence, num_computed, restored in zip(swapped, restoration.num_computed, restoration.tables, strict=True):
            num_new = first_chunk(sequence, num_computed, budget - sum(news), rules)
            if num_new == 0:
                return 0
            news.append(num_new)
            needed += tables.num_needed(sequence, num_new, num_computed, len(restored[0]))
            num_full += tables.num_needed_for_all(sequence, len(restored[0]))
        self._view.num_full_blocks = num_full
        if not self._may_admit(request, needed, plan):
            return 0
        tables.swapping.swap_in(request, restoration, plan)
        self._enter_running(request, plan, NO_HIT)
        for sequence, num_new in zip(swapped, news, strict=True):
            self._running.start(sequence, request.rank + request.live.index(sequence))
            self._begin_chunk(sequence, num_new, plan)
        return sum(news)

    def _may_admit(self, request: Request, num_new_blocks: int, plan: StepPlan) -> bool:
        answer = self._scheduler.policies.admission.admit(request, num_new_blocks, self._view)
        if answer is Admission.REJECT:
            self.turn_away(request)
            plan.rejected.append(request)
            return False
        if answer is Admission.WAIT or not self._tables.can_take(num_new_blocks):
            plan.blocked.append(request)
            return False
        return True

    def turn_away(self, request: Request) -> None:
        """The head of the queue is refused for good. Raises InputError for a policy that says it never does that."""
        if not self._policy.rejects:
            raise InputError(
                f"admission: {type(self._policy).__name__} answered REJECT, but says that it never rejects"
            )
        self._waiting.remove(request)
        self._tables.swapping.forget(request)
        self._reject(request, "by the admission policy")

    def _enter_running(self, request: Request, plan: StepPlan, hit: PrefixHit) -> None:
        self.enter(request, hit.num_tokens, plan.now_ps)
        plan.admitted.append(request)
        plan.hit_tokens[request.request_id] = hit.num_tokens

    def enter(self, request: Request, num_hit_tokens: int, now_ps: int) -> None:
        """From the queue to the running requests."""
        self._waiting.admit(request)
        self._running.add(request)
        if self._tells_admissions:
            self._policy.on_admit(request, self._view)
        if request.num_cached_tokens < 0:
            if self._scheduler.foresight is not None:
                self._scheduler.foresight.pass_by(request.request_id)
            request.num_cached_tokens = num_hit_tokens
            request.first_scheduled_ps = now_ps
            self._log.count(_ADMIT, request.request_id, num_hit_tokens)
        else:
            request.num_readmission_cached_tokens += num_hit_tokens
            self._log.count(Event.RESUME, request.request_id, num_hit_tokens)
        request.status = _RUNNING

    def _begin_chunk(self, sequence: Sequence, num_new: int, plan: StepPlan) -> None:
        """First work after an admission; a sequence that only lacked its newest token's KV decodes at once."""
        num_computed = sequence.num_computed
        if self._attribution is not None:
            self._attribution.look_ahead(sequence, num_computed)
        self._tables.grow(sequence, num_new, plan)
        self._publication.scheduled(sequence, num_new)
        if sequence.batch is None:
            plan.chunks.append(Chunk(sequence, num_computed, num_new))
        else:
            plan.late.append(sequence)
