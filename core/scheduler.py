"""The scheduler: continuous batching, chunked prefill, preemption, prefix caching (vLLM 0.33's synchronous rules).

Each step brings every request's KV up to its known tokens: running requests first, in order of admission
(`core.growth`), then the head of the queue (`core.admission`). `schedule` decides one step and may offer a span of
alike steps; `commit` takes what came of it. Nothing here costs O(running) or O(pool) a step, except the steps in which
memory runs out or the token budget ends amid the running requests.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Final

from core.admission import Admissions
from core.block_tables import BlockTables
from core.decision_log import DecisionLog, Event
from core.durations import total_ps
from core.emission import Emission
from core.foresight import Foresight
from core.growth import Growth
from core.interfaces import (
    AdmissionPolicy,
    BatchPolicy,
    BatchRules,
    Policy,
    Preemption,
    PreemptionPolicy,
    PreemptMode,
    QueuePolicy,
    Shortage,
)
from core.plan import Chunk, StepPlan, StepResult
from core.publication import AtSchedule, AtStepEnd, OnceComputed, Publication
from core.recorder import Recorder
from core.request import Outcome, Request, Sequence, Status
from core.running import RunningRequests
from core.scheduler_config import SchedulerConfig as SchedulerConfig
from core.servable import is_plainly_servable, plain_limit_tokens, why_unservable
from core.span import SpanLimit
from core.step_order import StepOrder
from core.view import View
from core.waiting_queue import WaitingQueue

_PUBLICATIONS = {"schedule": AtSchedule, "step_end": AtStepEnd, "computed": OnceComputed}
_END_EVENTS: Final = {
    Outcome.FINISHED: Event.FINISH,
    Outcome.CANCELLED: Event.CANCEL,
    Outcome.REJECTED: Event.REJECT,
}
_DONE: Final = Status.DONE  # to ask an Enum for a member takes longer
_CHUNK: Final = Event.CHUNK


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies a scheduler asks (eviction and allocation are asked by the pool and the tables)."""

    preemption: PreemptionPolicy
    batching: BatchPolicy
    queue: QueuePolicy
    admission: AdmissionPolicy
    others: tuple[Policy, ...] = ()

    def all(self) -> tuple[Policy, ...]:
        return (self.preemption, self.batching, self.queue, self.admission, *self.others)


class Scheduler:
    """Requests come in by `add` and `cancel`, time by `schedule(now_ps)` and the durations given to `commit`."""

    def __init__(
        self, config: SchedulerConfig, tables: BlockTables, policies: Policies, log: DecisionLog, recorder: Recorder
    ) -> None:
        self.config = config
        self.tables = tables
        self.policies = policies
        self.log = log
        self.recorder = recorder
        recorder.block_size, recorder.num_kv_groups = tables.block_size, tables.num_groups
        self.foresight: Foresight | None = None
        self._plain_limit_tokens = plain_limit_tokens(config, tables)
        self.now_ps = 0
        self.step = 0
        self.running = RunningRequests(tables.block_size)
        self.num_prefill_tokens = 0
        self.view = View(self)
        self.waiting = WaitingQueue(policies.queue, self.view)
        self.publication = self._publication_class()(self.running, tables)
        self.kept: list[Sequence] = []  # have ended, and not freed their blocks
        self.in_flight: StepPlan | None = None
        self.growth = Growth(
            self.running,
            tables,
            policies.preemption,
            self._preempt,
            self.publication,
            config.own_preemption_ends_step,
            self.num_in_flight_tokens,
        )
        self.admissions = Admissions(self, self._reject)
        self._order = StepOrder(self.running, self.growth, self.admissions, config.admit_after_preemption)
        self._emission = Emission(self.running, tables, recorder)
        self.span_limit = SpanLimit(
            self.running, self.waiting, tables, policies.all(), config.max_num_seqs, self.publication
        )

    def _publication_class(self) -> type[Publication]:
        if not self.tables.prefix_caching:
            return Publication
        return _PUBLICATIONS[self.config.publication]

    # ---- requests come and go -------------------------------------------------------------------------------------

    def add(self, request: Request, now_ps: int) -> bool:
        """Queues the request, or ends it as REJECTED if it could never run. Returns whether it was queued."""
        self.now_ps = now_ps
        if self.config.max_model_len is not None:
            most = self.config.max_model_len - request.num_prompt_tokens
            request.num_output_tokens = min(request.num_output_tokens, max(most, 0))
            request.max_new_tokens = min(request.max_new_tokens, max(most, 0))
        if not self.surely_queues(request):
            reason = request.reject_reason or why_unservable(request, self.config, self.tables, self.policies.batching)
            if reason:
                self._reject(request, reason)
                return False
        lead = Sequence(request, 0, request.keys, self.tables.empty(), request.num_prompt_tokens)
        lead.num_peak_blocks = -(-request.num_peak_tokens // self.tables.block_size)
        request.sequences = [lead] if request.num_samples == 1 else [lead, *self._siblings(lead)]
        request.live = request.sequences[:]
        self.waiting.append(request)
        return True

    def surely_queues(self, request: Request) -> bool:
        """Whether `add` is sure to queue it, as far as can be told at once; replicas that are alike say the same."""
        return not request.reject_reason and is_plainly_servable(request, self._plain_limit_tokens)

    def _siblings(self, lead: Sequence) -> list[Sequence]:
        """The other samples of its request."""
        request, siblings = lead.request, []
        for index in range(1, request.num_samples):
            keys = request.keys.for_sample(request.request_id + (index << 31))
            sequence = Sequence(request, index, keys, self.tables.empty(), request.num_prompt_tokens)
            sequence.num_peak_blocks = lead.num_peak_blocks
            siblings.append(sequence)
        return siblings

    def cancel(self, request: Request, now_ps: int) -> None:
        """Ends the request in whatever state it is; idempotent. Called while a step runs, that step's token is lost.

        In the midst of a span the caller first calls `extend` with the durations of the steps begun so far.
        """
        if request.status is Status.DONE:
            return
        self.now_ps = now_ps
        request.num_produced_tokens += sum(sequence.num_outputs for sequence in request.live)
        if request.status is Status.RUNNING:
            held = set() if self.in_flight is None else self.in_flight.held
            if self.in_flight is not None:
                self.in_flight.num_lost_decodes += self.running.num_regular_decodes(request, held)
            sat_out = [sequence for sequence in request.live if sequence.rank in held]
            self.running.remove(request, now_ps)
            self.policies.admission.on_stop(request, self.view)
            for sequence in sat_out:
                sequence.stored_computed -= 1  # the batch has counted the step that passes it over
            for sequence in request.live:
                self.publication.interrupted(sequence)  # the running step's tokens, too: it is carried out all the same
                self.tables.release(sequence)
            self._free_kept()
        else:
            self.waiting.remove(request)
            self.tables.swapping.forget(request)
        self.done(request, Outcome.CANCELLED)

    def _reject(self, request: Request, reason: str) -> None:
        request.reject_reason = reason
        self.done(request, Outcome.REJECTED)

    def done(self, request: Request, outcome: Outcome) -> None:
        if self.in_flight is None and not self._is_busy:
            self.log.step = self.step
        if self.foresight is not None:
            self.foresight.pass_by(request.request_id)
        request.status = _DONE
        request.outcome = outcome
        request.finish_ps = self.now_ps
        request.sequences.clear()  # they know their request: a circle, which would be garbage to collect
        self.log.count(_END_EVENTS[outcome], request.request_id, request.num_produced_tokens)
        self.recorder.on_done(request)

    @property
    def _is_busy(self) -> bool:
        """Is there a plan that was scheduled and is not committed?"""
        return self.in_flight is not None

    def num_in_flight_tokens(self, sequence: Sequence) -> int:
        """Of its tokens that count as having KV, those of a step that still runs."""
        return 0

    # ---- one step -------------------------------------------------------------------------------------------------

    def schedule(self, now_ps: int) -> StepPlan | None:
        """Decides the step that starts now; None if there is no request. An empty plan is not to be committed."""
        if not self.running and not self.waiting:
            return None
        self.now_ps = now_ps
        self.log.step = self.step
        plan = StepPlan(self.step, now_ps, self.running.batch)
        if self.policies.preemption.takes_slots and self.waiting:
            self._make_slots(self.waiting.head, plan)
        rules = self.policies.batching.compose(self.view)
        self._order.fill(plan, rules)
        self.seal(plan, rules)
        return plan

    def _make_slots(self, head: Request, plan: StepPlan) -> None:
        """Preempts for the head of the queue where it lacks slots."""
        while (num_short := self.running.num_sequences + len(head.live) - self.config.max_num_seqs) > 0:
            preemption = self.policies.preemption.select(self.running, Shortage(0, num_short), head)
            if preemption is None or not self.waiting.precedes(head, preemption.request):
                return
            self._preempt(preemption, plan)

    def seal(self, plan: StepPlan, rules: BatchRules) -> None:
        """Counts the step's work, and counts its tokens as having KV from here on."""
        running, batch = self.running, self.running.batch
        for chunk in plan.chunks:
            self.count_prefill(chunk)
            chunk.sequence.stored_computed += chunk.num_new
            plan.num_prefill_tokens += chunk.num_new
        plan.num_running = len(running)
        plan.num_waiting = len(self.waiting)
        plan.num_decodes = len(batch) - len(plan.held)
        if plan.is_empty:
            self.step += 1
            self.recorder.on_empty_plan(plan)
            return
        plan.searches = [r for rank, r in running.searches.items() if rank in batch.members and rank not in plan.held]
        held_tokens = sum(batch.members[rank].num_computed for rank in plan.held)
        plan.decode_context_tokens = batch.context_tokens - held_tokens + plan.num_decodes
        if not self.config.single_steps:
            plan.max_steps = self.span_limit.num_steps(plan, rules)
        plan.num_preempted = len(plan.preempted) + self.recorder.pop_preempted_before()
        self.in_flight = plan
        plan.num_filled_tokens = self.tables.num_filled_tokens(running, plan.num_decodes)
        self.recorder.on_steps(plan, self.tables, 1)
        batch.clock += 1

    def count_prefill(self, chunk: Chunk) -> None:
        sequence, num_computed, num_new = chunk.sequence, chunk.num_computed, chunk.num_new
        request = sequence.request
        request.num_prefill_tokens += num_new
        self.num_prefill_tokens += num_new
        if sequence.num_had_kv > num_computed:
            request.num_recomputed_tokens += min(num_computed + num_new, sequence.num_had_kv) - num_computed
        if sequence.lost_ahead and self.tables.pool.attribution is not None:
            self.tables.pool.attribution.charge(sequence, num_computed + num_new)
        self.log.count(_CHUNK, request.request_id, num_new)

    def _preempt(self, preemption: Preemption, plan: StepPlan) -> None:
        """Takes the victim's blocks; it goes to the front of the queue and keeps its outputs."""
        request, mode = preemption
        request.num_preemptions += 1
        self.running.remove(request, self.now_ps)
        num_computed = request.live[0].stored_computed
        self.log.count(Event.PREEMPT, request.request_id, num_computed)
        self.tables.undo_step(request, plan, keep_registrations=self.config.keep_cancelled_registrations)
        if mode is PreemptMode.SWAP and num_computed:
            request.swapped = self.tables.swapping.swap_out(request, plan)
            self.recorder.num_swap_fallbacks += request.swapped is None
        if request.is_beam_search and request.swapped is None:
            request.restart_search()
        for sequence in request.live:
            self.publication.preempted(sequence)
            self.tables.suspend(sequence)
            sequence.num_had_kv = max(sequence.num_had_kv, sequence.stored_computed)
            sequence.stored_computed = 0
        self._free_kept()
        request.status = Status.PREEMPTED
        self.policies.admission.on_stop(request, self.view)
        self.policies.admission.on_preempt(request, self.view)
        plan.preempted.append(request)
        self.waiting.prepend(request)

    # ---- what came of it ------------------------------------------------------------------------------------------

    def extend(self, plan: StepPlan, durations_ps: SequenceOf[int]) -> None:
        """Takes the blocks of the span's further steps, up to `len(durations_ps)` steps in all; idempotent."""
        batch, num_steps, place = self.running.batch, len(durations_ps), plan.num_steps
        if num_steps <= place:
            return
        start_ps = plan.now_ps + total_ps(durations_ps[:place])
        while place < num_steps:
            num_alike = batch.steps_to_next_edge(num_steps - place, batch.clock)
            if num_alike == 0:
                num_alike = 1
                batch.num_emitted = batch.clock
                self.now_ps = start_ps
                self.log.step = plan.step + place
                self.growth.decode_step()
            self.recorder.on_steps(plan, self.tables, num_alike)
            batch.clock += num_alike
            start_ps += total_ps(durations_ps[place : place + num_alike])
            place += num_alike
        batch.num_emitted = batch.clock - 1  # the last step is running now
        self.now_ps = start_ps - durations_ps[-1]
        self.log.step = plan.step + num_steps - 1
        plan.num_steps = num_steps

    def commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        """The plan was carried out: tokens appear, sequences end and free blocks. Returns the requests now done."""
        durations_ps = result.durations_ps
        self.extend(plan, durations_ps)
        self.now_ps = plan.now_ps + total_ps(durations_ps)
        self.log.step = plan.step + plan.num_steps - 1
        self.step += plan.num_steps
        self.publication.chunks_ended(plan)
        ended = self._emission.advance(plan, result.stopped)
        if result.parents:
            self._emission.go_on_from(result.parents)
        self._emission.tell(plan, self.now_ps)
        done = [sequence.request for sequence in ended if self.end(sequence)]
        self.recorder.on_plan(plan, durations_ps, self.tables.pool)
        self.in_flight = None
        return done

    def end(self, sequence: Sequence) -> bool:
        """Frees its blocks. Returns whether its request is done: it is with its last sequence."""
        request = sequence.request
        request.num_produced_tokens += sequence.num_outputs
        self.running.end(sequence, self.now_ps)
        self.publication.ended(sequence)
        if self.policies.batching.frees_with_batch:
            self.kept.append(sequence)
            self.running.retired.add(sequence)
            self._free_kept()
        else:
            self.tables.release(sequence)
        if request.live:
            return False
        self.policies.admission.on_stop(request, self.view)
        self.done(request, Outcome.FINISHED)
        return True

    def _free_kept(self) -> None:
        """Blocks of sequences that have ended, unless those are kept until the whole batch is done."""
        if self.kept and not self.running:
            for sequence in self.kept:
                self.tables.release(sequence)
                self.running.retired.discard(sequence)
            self.kept.clear()

    # ---- what a driver asks ---------------------------------------------------------------------------------------

    def wants_step_now(self, request: Request) -> bool:
        """Could this newly queued request be admitted before the running span ends? Then the span should be cut."""
        if self.policies.preemption.takes_slots:
            return True
        if self.waiting.is_reranked:
            return self.running.num_sequences < self.config.max_num_seqs
        if self.running.num_sequences + len(request.live) > self.config.max_num_seqs:
            return False
        return len(self.waiting.entries) == 1 or self.waiting.head is request
