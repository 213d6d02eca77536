"""The scheduler: continuous batching with chunked prefill, preemption and prefix caching (vLLM 0.33's synchronous rules).

Each step brings every request's KV up to its known tokens: running requests first, in order of admission, then the head of the
queue. `schedule` decides one step and may offer a span of alike steps; `commit` takes what came of it. Nothing here costs
O(running) or O(pool) a step, except the steps in which memory runs out or the token budget ends amid the running requests.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from core.block_tables import BlockTables, PrefixHit
from core.decision_log import DecisionLog, Event
from core.growth import Growth, first_chunk
from core.interfaces import (
    Admission,
    AdmissionPolicy,
    BatchPolicy,
    BatchRules,
    Policy,
    Preemption,
    PreemptionPolicy,
    PreemptMode,
    QueuePolicy,
)
from core.plan import Chunk, StepPlan, StepResult
from core.recorder import Recorder
from core.request import Outcome, Request, Sequence, Status
from core.running import RunningRequests
from core.span import SpanLimit
from core.view import View
from core.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Switches of the scheduler; those of a policy are the policy's.

    `keep_cancelled_registrations` mirrors vLLM: a prefill cancelled within its own step by a priority preemption leaves blocks
    in the prefix index whose KV was never computed. Off, they are taken back. `single_steps` turns spans off.
    """

    max_num_seqs: int = 256
    max_batch_tokens: int = 8192
    chunked_prefill: bool = True
    long_prefill_threshold_tokens: int = 0
    max_model_len: int | None = None
    keep_cancelled_registrations: bool = False
    single_steps: bool = False


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
    """Requests come in by `add` and `cancel`; time comes in by `schedule(now_ps)` and the durations given to `commit`."""

    def __init__(
        self, config: SchedulerConfig, tables: BlockTables, policies: Policies, log: DecisionLog, recorder: Recorder
    ) -> None:
        self.config = config
        self.tables = tables
        self.policies = policies
        self.log = log
        self.recorder = recorder
        self.now_ps = 0
        self.step = 0
        self.running = RunningRequests(tables.block_size)
        self.waiting = WaitingQueue(policies.queue)
        self.view = View(self)
        self._in_flight: StepPlan | None = None
        self._growth = Growth(self.running, tables, policies.preemption, self._preempt, log)
        self._span_limit = SpanLimit(self.running, self.waiting, tables, policies.all(), config.max_num_seqs)

    # ---- requests come and go -------------------------------------------------------------------------------------

    def add(self, request: Request, now_ps: int) -> bool:
        """Queues the request, or ends it as REJECTED if it could never run. Returns whether it was queued."""
        self.now_ps = now_ps
        if self.config.max_model_len is not None:
            most = self.config.max_model_len - request.num_prompt_tokens
            request.num_output_tokens = min(request.num_output_tokens, max(most, 0))
        reason = self._unservable(request)
        if reason:
            self._reject(request, reason)
            return False
        request.sequences = [
            Sequence(
                request,
                index,
                request.keys if index == 0 else request.keys.for_sample(request.request_id + (index << 31)),
                [[] for _ in self.tables.groups],
                request.num_prompt_tokens,
            )
            for index in range(request.num_samples)
        ]
        self.waiting.append(request)
        return True

    def _unservable(self, request: Request) -> str:
        """Why the request can never run; empty if it can. Its KV peaks at prompt + output - 1 tokens."""
        if request.num_prompt_tokens < 1 or request.num_output_tokens < 1:
            return "no token to compute or none to produce"
        if request.num_samples > self.config.max_num_seqs:
            return f"{request.num_samples} samples exceed max_num_seqs={self.config.max_num_seqs}"
        if not self.config.chunked_prefill and request.num_prompt_tokens > self.config.max_batch_tokens:
            return f"prompt exceeds max_batch_tokens={self.config.max_batch_tokens} and chunked prefill is off"
        num_blocks = self.tables.pool.num_blocks
        if num_blocks is not None and self._peak_blocks(request) > num_blocks:
            return f"needs {self._peak_blocks(request)} blocks, the pool has {num_blocks}"
        return ""

    def _peak_blocks(self, request: Request) -> int:
        size = self.tables.block_size
        per_sequence = -(-(request.num_prompt_tokens + request.num_output_tokens - 1) // size)
        num_shared = request.num_prompt_tokens // size if request.num_samples > 1 else 0
        most = num_shared + request.num_samples * (per_sequence - num_shared)
        if self.tables.is_windowed and request.num_samples == 1:
            budget = self.config.max_batch_tokens
            windows = (g.window_tokens for g in self.tables.groups if g.window_tokens is not None)
            capped = sum(min(per_sequence, -(-(window - 1 + budget) // size) + 1) for window in windows)
            num_full = sum(group.window_tokens is None for group in self.tables.groups)
            return num_full * per_sequence + capped
        return most * len(self.tables.groups)

    def _reject(self, request: Request, reason: str) -> None:
        request.reject_reason = reason
        self._done(request, Outcome.REJECTED)

    def cancel(self, request: Request, now_ps: int) -> None:
        """Ends the request in whatever state it is; idempotent. Called while a step runs, that step's token is lost.

        In the midst of a span the caller first calls `extend` with the durations of the steps begun so far.
        """
        if request.status is Status.DONE:
            return
        self.now_ps = now_ps
        live = request.live
        request.num_produced_tokens += sum(sequence.num_outputs for sequence in live)
        if request.status is Status.RUNNING:
            if self._in_flight is not None:
                self._in_flight.num_lost_decodes += sum(s.batch is not None and s.rank not in self.running.late for s in live)
            self.running.remove(request, now_ps)
            for sequence in live:
                self.tables.release(sequence)
        else:
            self._leave_queue(request)
        self._done(request, Outcome.CANCELLED)

    def _leave_queue(self, request: Request) -> None:
        self.waiting.remove(request)
        if request.swapped is not None:
            self.tables.host.release(request.swapped.host_ids)
            request.swapped = None

    def _done(self, request: Request, outcome: Outcome) -> None:
        if self._in_flight is None:
            self.log.step = self.step
        events = {Outcome.FINISHED: Event.FINISH, Outcome.CANCELLED: Event.CANCEL, Outcome.REJECTED: Event.REJECT}
        request.status = Status.DONE
        request.outcome = outcome
        request.finish_ps = self.now_ps
        self.log.count(events[outcome], request.request_id, request.num_produced_tokens)
        self.recorder.on_done(request)

    # ---- one step -------------------------------------------------------------------------------------------------

    def schedule(self, now_ps: int) -> StepPlan | None:
        """Decides the step that starts now; None if there is no request. An empty plan takes no time and is not committed."""
        if not self.running and not self.waiting:
            return None
        self.now_ps = now_ps
        self.log.step = self.step
        plan = StepPlan(self.step, now_ps, self.running.batch)
        rules = self.policies.batching.compose(self.view)
        budget = self._growth.grow(plan, rules)
        if not plan.preempted:
            self._admit(plan, rules, budget)
        self._seal(plan)
        return plan

    def _seal(self, plan: StepPlan) -> None:
        """Counts the step's work, and counts its tokens as having KV from here on."""
        running, batch = self.running, self.running.batch
        for chunk in plan.chunks:
            self._count_prefill(chunk)
            chunk.sequence.stored_computed += chunk.num_new
        plan.num_running = len(running)
        plan.num_waiting = len(self.waiting)
        plan.num_decodes = len(batch) - len(plan.held)
        plan.referenced_blocks.append(self.tables.pool.num_referenced)
        plan.cached_blocks.append(self.tables.pool.num_cached)
        if plan.is_empty:
            self.step += 1
            self.recorder.on_empty_plan(plan)
            return
        held_tokens = sum(batch.members[rank].num_computed for rank in plan.held)
        plan.decode_context_tokens = batch.context_tokens - held_tokens + plan.num_decodes
        if not self.config.single_steps:
            plan.max_steps = self._span_limit.num_steps(plan)
        self._in_flight = plan
        batch.clock += 1
        for rank in plan.held:
            self._hold(batch.members[rank])

    def _count_prefill(self, chunk: Chunk) -> None:
        sequence, num_computed, num_new = chunk
        request = sequence.request
        request.num_prefill_tokens += num_new
        request.num_recomputed_tokens += max(0, min(num_computed + num_new, sequence.num_had_kv) - num_computed)
        self.log.count(Event.CHUNK, request.request_id, num_new)

    def _hold(self, sequence: Sequence) -> None:
        self.running.batch.hold(sequence)
        if sequence.rank not in self.running.late:
            sequence.last_token_ps = self.now_ps
            self.running.late[sequence.rank] = sequence

    # ---- admission ------------------------------------------------------------------------------------------------

    def _admit(self, plan: StepPlan, rules: BatchRules, budget: int) -> None:
        """Admits from the head of the queue until something is short; nothing behind a blocked head is tried."""
        while budget > 0 and self.waiting:
            request = self.waiting.head
            if self.running.num_sequences + len(request.live) > self.config.max_num_seqs:
                return
            if request.swapped is not None:
                num_new = self._swap_in(request, plan, rules, budget)
            else:
                num_new = self._start(request, plan, rules, budget)
            if request.status is Status.DONE:
                continue
            if num_new == 0:
                return
            budget -= num_new

    def _start(self, request: Request, plan: StepPlan, rules: BatchRules, budget: int) -> int:
        """Admits a request whose prompt is to be computed. Returns the tokens scheduled; 0 if it must wait."""
        tables = self.tables
        lead = request.live[0]
        hit = tables.find_prefix(lead) if tables.prefix_caching else PrefixHit(0, [[] for _ in tables.groups], 0)
        num_new = first_chunk(lead.num_known - hit.num_tokens, budget, rules)
        if num_new == 0:
            return 0
        num_held = len(hit.tables[0])
        needed = tables.num_needed(lead, num_new, hit.num_tokens, num_held) + hit.num_idle
        self.view.num_full_blocks = tables.num_needed_for_all(lead, num_held) + hit.num_idle
        if not self._may_admit(request, needed, plan):
            return 0
        readmission = request.status is Status.PREEMPTED
        tables.adopt(lead, hit, readmission)
        self._enter_running(request, plan, hit.num_tokens)
        self.running.start(lead, request.rank)
        self._begin_chunk(lead, num_new, plan)
        return num_new

    def _swap_in(self, request: Request, plan: StepPlan, rules: BatchRules, budget: int) -> int:
        """Admits a swapped-out request: its blocks come back, and its sequences go on in this very step."""
        tables = self.tables
        restoration = tables.find_swapped(request)
        needed = num_full = restoration.num_loads + restoration.num_idle + restoration.num_copies
        news = []
        left = budget
        assert request.swapped is not None
        swapped = request.swapped.sequences
        for sequence, num_computed, restored in zip(swapped, restoration.num_computed, restoration.tables, strict=True):
            num_new = first_chunk(sequence.num_known - num_computed, left, rules)
            if num_new == 0:
                return 0
            news.append(num_new)
            left -= num_new
            needed += tables.num_needed(sequence, num_new, num_computed, len(restored[0]))
            num_full += tables.num_needed_for_all(sequence, len(restored[0]))
        self.view.num_full_blocks = num_full
        if not self._may_admit(request, needed, plan):
            return 0
        tables.swap_in(request, restoration, plan)
        self._enter_running(request, plan, 0)
        for sequence, num_new in zip(swapped, news, strict=True):
            self.running.start(sequence, request.rank + request.live.index(sequence))
            self._begin_chunk(sequence, num_new, plan)
        return sum(news)

    def _may_admit(self, request: Request, num_new_blocks: int, plan: StepPlan) -> bool:
        answer = self.policies.admission.admit(request, num_new_blocks, self.view)
        if answer is Admission.REJECT:
            self._leave_queue(request)
            self._reject(request, "by the admission policy")
            plan.rejected.append(request)
            return False
        if answer is Admission.WAIT or num_new_blocks > self.tables.pool.num_available:
            plan.blocked.append(request)
            return False
        return True

    def _enter_running(self, request: Request, plan: StepPlan, num_hit_tokens: int) -> None:
        self.waiting.remove(request)
        self.running.add(request)
        plan.admitted.append(request)
        plan.hit_tokens[request.request_id] = num_hit_tokens
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_hit_tokens
            request.first_scheduled_ps = self.now_ps
            self.log.count(Event.ADMIT, request.request_id, num_hit_tokens)
        else:
            request.num_readmission_cached_tokens += num_hit_tokens
            self.log.count(Event.RESUME, request.request_id, num_hit_tokens)
        request.status = Status.RUNNING

    def _begin_chunk(self, sequence: Sequence, num_new: int, plan: StepPlan) -> None:
        """First work after an admission; a swapped-in sequence that only lacked its newest token's KV decodes at once."""
        num_computed = sequence.num_computed
        self.tables.grow(sequence, num_new, plan)
        if self.tables.prefix_caching:
            self.tables.publish(sequence, min(num_computed + num_new, sequence.num_known))
        if sequence.batch is None:
            plan.chunks.append(Chunk(sequence, num_computed, num_new))
        else:
            plan.late.append(sequence)

    # ---- preemption -----------------------------------------------------------------------------------------------

    def _preempt(self, preemption: Preemption, plan: StepPlan) -> None:
        """Takes the victim's blocks; it goes to the front of the queue and keeps its outputs."""
        request, mode = preemption
        live = request.live
        request.num_preemptions += 1
        self.running.remove(request, self.now_ps)
        num_computed = live[0].stored_computed
        self.log.count(Event.PREEMPT, request.request_id, num_computed)
        if not self.config.keep_cancelled_registrations and self.tables.prefix_caching:
            for sequence in live:
                self.tables.unpublish(sequence, sequence.stored_computed)
        if mode is PreemptMode.SWAP and num_computed:
            request.swapped = self.tables.swap_out(request, plan)
            self.recorder.num_swap_fallbacks += request.swapped is None
        for sequence in live:
            self.tables.cancel_copies(sequence, plan)
            self.tables.release(sequence)
            sequence.num_had_kv = max(sequence.num_had_kv, sequence.stored_computed)
            sequence.stored_computed = 0
        request.status = Status.PREEMPTED
        plan.preempted.append(request)
        self.waiting.prepend(request)

    # ---- what came of it ------------------------------------------------------------------------------------------

    def extend(self, plan: StepPlan, durations_ps: SequenceOf[int]) -> None:
        """Takes the blocks of the span's further steps, up to `len(durations_ps)` steps in all; idempotent."""
        batch, pool = self.running.batch, self.tables.pool
        start_ps = plan.now_ps + sum(durations_ps[: plan.num_steps])
        for place in range(plan.num_steps, len(durations_ps)):
            batch.num_emitted = batch.clock
            self.now_ps = start_ps
            self.log.step = plan.step + place
            self._growth.decode_step()
            batch.clock += 1
            plan.referenced_blocks.append(pool.num_referenced)
            plan.cached_blocks.append(pool.num_cached)
            start_ps += durations_ps[place]
        plan.num_steps = max(plan.num_steps, len(durations_ps))

    def commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        """The plan was carried out: tokens appear, sequences end and free their blocks. Returns the requests that are done."""
        self.extend(plan, result.durations_ps)
        self.now_ps = plan.now_ps + sum(result.durations_ps)
        self.log.step = plan.step + plan.num_steps - 1
        self.step += plan.num_steps
        batch = self.running.batch
        batch.num_emitted = batch.clock
        for sequence in plan.late:
            if sequence.batch is not None:
                self._emit_late(sequence)
        ended = batch.pop_ended()
        ended += [batch.members[rank] for rank in result.stopped if rank in batch.members]
        for chunk in plan.chunks:
            if chunk.sequence.rank in self.running.prefills and self._is_complete(chunk.sequence):
                ended += self._emit_from_prefill(chunk.sequence, result.stopped)
        done = self._end(ended)
        self.recorder.on_plan(plan, result, self.tables.pool.num_referenced, self.tables.pool.num_cached)
        self._in_flight = None
        return done

    def _is_complete(self, sequence: Sequence) -> bool:
        return sequence.stored_computed == sequence.stored_known

    def _emit_late(self, sequence: Sequence) -> None:
        """Its newest token came after a pause: the gap is recorded by itself."""
        self.running.late.pop(sequence.rank, None)
        self.recorder.on_late_token(self.now_ps - sequence.last_token_ps)

    def _emit_from_prefill(self, lead: Sequence, stopped: frozenset[int]) -> list[Sequence]:
        """A prefill is complete: it samples a token, and so do the samples that share a fresh prompt. Returns those that end."""
        request = lead.request
        if request.first_token_ps < 0:
            request.first_token_ps = self.now_ps
        ended = []
        for sequence in [lead, *self._fork(lead)]:
            if not self._is_complete(sequence):
                continue
            if sequence.last_token_ps >= 0:
                self.recorder.on_late_token(self.now_ps - sequence.last_token_ps)
            sequence.stored_known += 1
            self.running.to_decode(sequence)
            if sequence.num_outputs >= request.num_output_tokens or sequence.rank in stopped:
                ended.append(sequence)
        return ended

    def _fork(self, lead: Sequence) -> list[Sequence]:
        """Starts the samples that waited for the prompt: they share its blocks, all of them while nothing was sampled yet."""
        request = lead.request
        siblings = [sequence for sequence in request.live if sequence.rank < 0]
        size = self.tables.block_size
        for sibling in siblings:
            is_fresh = sibling.num_outputs == 0
            shared = -(-request.num_prompt_tokens // size) if is_fresh else request.num_prompt_tokens // size
            self.tables.fork(lead, sibling, shared)
            sibling.stored_computed = request.num_prompt_tokens if is_fresh else shared * size
            self.running.start(sibling, request.rank + request.live.index(sibling))
            self.running.has_shared_tails = True
        return siblings

    def _end(self, ended: list[Sequence]) -> list[Request]:
        """Frees in running order. A request is done with its last sequence."""
        done = []
        for sequence in sorted(set(ended), key=lambda s: s.rank):
            request = sequence.request
            request.num_produced_tokens += sequence.num_outputs
            self.running.end(sequence, self.now_ps)
            self.tables.release(sequence)
            if not request.live:
                self._done(request, Outcome.FINISHED)
                done.append(request)
        return done

    # ---- what a driver asks ---------------------------------------------------------------------------------------

    def wants_step_now(self, request: Request) -> bool:
        """Could this newly queued request be admitted before the running span ends? Then the span should be cut."""
        num_wanted = self.running.num_sequences + len(request.live)
        return self.waiting.head is request and num_wanted <= self.config.max_num_seqs
