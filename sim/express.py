"""Plain steps without a plan object: what nothing but arithmetic decides is decided here, and all else by the rules.

Most steps of most runs are plain: every running request gets its tokens, the head of the queue starts or has to wait,
whoever has all its tokens leaves. `Express` takes such steps in one loop over the scheduler's own books. It decides
what `Scheduler.schedule` and `commit` would decide, block for block, and hands over to them, at a boundary between two
steps, wherever it meets anything else: memory that runs short, whoever comes back after a preemption, several samples.
So a run is the same with it and without, which a property test shows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import Enum

from core.block_tables import NO_HIT, BlockTables
from core.decision_log import EACH, Event
from core.durations import EvenDurations, even_num_begun, even_total_ps
from core.growth import first_chunk
from core.interfaces import Admission, AdmissionPolicy, BatchRules, Policy
from core.plan import Chunk, StepPlan
from core.publication import AtSchedule, Publication
from core.request import Outcome, Request, Sequence, Status
from core.scheduler import Scheduler
from sim.cost_model import CostModel, StepWork

NOT_PLAIN = -1


class Stop(Enum):
    """Why the express halts."""

    FLYING = "flying"  # a span runs, and ends at or after the horizon
    BY_RULE = "by rule"  # the next step is not plain: the scheduler is to decide it
    DECIDED = "decided"  # the scheduler has decided a step that began as a plain one
    SHARED = "shared"  # at a boundary at which something from outside may happen, too
    IDLE = "idle"  # nobody can run


def suits(scheduler: Scheduler, cost: CostModel) -> bool:
    """Whether steps of this scheduler can be plain at all."""
    policies, tables = scheduler.policies, scheduler.tables
    return (
        type(scheduler) is Scheduler
        and type(tables) is BlockTables
        and type(scheduler.publication) in (Publication, AtSchedule)
        and tables.is_on_demand
        and not tables.is_windowed
        and tables.num_groups == 1
        and not scheduler.config.single_steps
        and not policies.preemption.takes_slots
        and not policies.batching.frees_with_batch
        and not scheduler.waiting.is_reranked
        and all(type(policy).next_change is Policy.next_change for policy in policies.all())
        and cost.has_even_spans
    )


class Express:
    """One loop from boundary to boundary. `run` begins at one; where it halts FLYING, a span of plain steps runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel,
        horizon: Callable[[], float],
        on_done: Callable[[list[Request], int], None],
    ) -> None:
        """`horizon()`: nothing happens before, but what the steps themselves bring about. `on_done` hears who is."""
        self._scheduler = scheduler
        self._cost = cost
        self._horizon = horizon
        self._on_done = on_done
        self._tables = scheduler.tables
        self._pool = scheduler.tables.pool
        self._running = scheduler.running
        self._batch = scheduler.running.batch
        self._waiting = scheduler.waiting
        self._log = scheduler.log
        self._recorder = scheduler.recorder
        self._admission = scheduler.policies.admission
        self._tells_stops = type(self._admission).on_stop is not AdmissionPolicy.on_stop
        self._work = StepWork(0)
        self._rejected: list[Request] = []
        self._no_plan = StepPlan(0, 0, self._batch)  # where plain growth notes nothing
        self.plan: StepPlan | None = None  # what the scheduler has decided, at the last Stop.DECIDED
        self.end_ps = 0  # of the span that flies
        self._chunks: list[Chunk] = []
        # Of the span that flies, as `Recorder` keeps it.
        self._now_ps = self._first_ps = self._growth_ps = self._num_steps = self._max_steps = 0
        self._num_decodes = self._context_tokens = self._num_filled = self._num_prefill = self._num_running = 0

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def land_and_run(self, now_ps: int) -> tuple[Stop, int]:
        """The span that flies ends now. As `run` from there."""
        self._land()
        return self.run(now_ps)

    def run(self, now_ps: int) -> tuple[Stop, int]:
        """Takes plain steps from the boundary at `now_ps` on. Returns why it halts, and at which boundary (FLYING: when
        the span ends).

        One long function on purpose: a call costs as much as half of what is to be done for a step.
        """
        scheduler, running, batch, waiting = self._scheduler, self._running, self._batch, self._waiting
        requests, prefills, members, buckets = running.requests, running.prefills, batch.members, batch.buckets
        if not requests and not waiting:
            return Stop.IDLE, now_ps
        if not self._is_plain():
            return Stop.BY_RULE, now_ps
        pool, tables, recorder, work, ends = self._pool, self._tables, self._recorder, self._work, batch.ends
        compose, view, growth = scheduler.policies.batching.compose, scheduler.view, scheduler.growth
        publishes, size, max_num_seqs = tables.prefix_caching, tables.block_size, scheduler.config.max_num_seqs
        step_ps, growth_of = self._cost.step_ps, self._cost.growth_ps
        log, free, referenced = self._log, pool.free, recorder.step_referenced_blocks
        until_ps = self._horizon()
        while True:
            # Who gets tokens in the span's first step, and blocks for them.
            rules = compose(view)
            num_decodes = len(members)
            budget = rules.budget_tokens - num_decodes
            if budget < 0 or rules.prompts_alone or not rules.admits:
                return Stop.BY_RULE, now_ps
            step, clock = scheduler.step, batch.clock
            crossing = buckets[clock % size]
            chunks: list[Chunk] = []
            if prefills:
                fitting = growth.fitting_chunks(rules)
                if fitting is None:
                    return Stop.BY_RULE, now_ps
                chunks = fitting
            elif len(crossing) > pool.num_available:
                return Stop.BY_RULE, now_ps
            scheduler.now_ps = now_ps
            log.step = step
            if chunks:
                budget -= sum([chunk.num_new for chunk in chunks])
                growth.take_in_order(chunks, self._no_plan)
            elif publishes or len(crossing) > len(free):
                growth.decode_step()
            elif crossing:
                num_blocks = len(crossing)
                blocks = free[: -num_blocks - 1 : -1]
                del free[-num_blocks:]
                pool.num_referenced += num_blocks
                pool.num_available -= num_blocks
                log.blocks_of(Event.ALLOC, [sequence.request.request_id for sequence in crossing.values()], blocks)
                for sequence, block in zip(crossing.values(), blocks, strict=True):
                    table = sequence.tables[0]
                    table.append(block)
                    if len(table) == sequence.num_peak_blocks:
                        tables.note_surplus(sequence)
            if waiting and budget > 0 and running.num_sequences < max_num_seqs:
                budget = self._admit(chunks, budget, rules)
                if budget > 0:
                    return self._go_on_by_rule(now_ps, chunks, budget, rules), now_ps
            if not chunks and not num_decodes:
                scheduler.step = step + 1
                self._tell_rejected(now_ps)
                return Stop.IDLE, now_ps

            # What it has to compute, how long that takes, and how many steps may follow.
            num_prefill = 0
            num_filled = context_tokens = batch.offset_sum + (clock + 1) * num_decodes
            if chunks:
                num_prefill = self._count_prefills(chunks)
                work.chunks = tuple([(chunk.num_new, chunk.num_computed) for chunk in chunks])
            else:
                work.chunks = ()
            if prefills:
                num_filled += sum([sequence.stored_computed for sequence in prefills.values()])
            if pool.num_shared:
                num_filled -= pool.num_shared * size
            if recorder.num_preempted_before:
                recorder.preempted[recorder.num_plans] = recorder.pop_preempted_before()
            if publishes or pool.num_shared != recorder.step_shared_references.last:
                recorder.on_step(pool, tables.num_surplus_tokens)
            else:
                place = recorder.num_steps_begun
                referenced.append(pool.num_referenced)
                if tables.num_surplus_tokens != recorder.step_internal_tokens.last:
                    recorder.step_internal_tokens.note(place, tables.num_surplus_tokens)
                recorder.num_steps_begun = place + 1
            max_steps = 1
            if not chunks and not self._rejected:
                end_clock, rank = ends[0]
                while rank not in members or members[rank].end_clock != end_clock:
                    heapq.heappop(ends)
                    end_clock, rank = ends[0]
                max_steps = end_clock - clock
                if (publishes and waiting) or pool.num_available < (max_steps // size + 1) * num_decodes:
                    max_steps = scheduler.span_limit.num_plain_steps(now_ps, step, rules)
            batch.clock = clock + 1
            work.step, work.num_decodes, work.decode_context_tokens = step, num_decodes, context_tokens
            first_ps = step_ps(work)
            growth_ps = 0 if max_steps == 1 else growth_of(work) or 0
            self._now_ps, self._first_ps, self._growth_ps, self._chunks = now_ps, first_ps, growth_ps, chunks
            self._num_steps, self._max_steps, self._num_prefill = 1, max_steps, num_prefill
            self._num_decodes, self._context_tokens, self._num_filled = num_decodes, context_tokens, num_filled
            self._num_running = len(requests)
            self.end_ps = end_ps = now_ps + first_ps
            if self._rejected:
                self._tell_rejected(now_ps)
                until_ps = self._horizon()
            if max_steps > 1 and end_ps < until_ps:
                self._lengthen(until_ps)
                end_ps = self.end_ps
            if end_ps >= until_ps:
                scheduler.in_flight = self._no_plan
                return Stop.FLYING, end_ps
            now_ps = end_ps
            if self._land():
                until_ps = self._horizon()
            if now_ps >= until_ps:
                return Stop.SHARED, now_ps
            if not requests and not waiting:
                return Stop.IDLE, now_ps

    def _is_plain(self) -> bool:
        """Whether those who run can be served without the rules. Plain steps do not change that."""
        running = self._running
        return not (
            running.num_sequences != len(running.requests)
            or running.late
            or running.has_shared_tails
            or running.searches
            or self._scheduler.kept
        )

    def _tell_rejected(self, now_ps: int) -> None:
        if self._rejected:
            rejected, self._rejected = self._rejected, []
            self._on_done(rejected, now_ps)

    def _count_prefills(self, chunks: list[Chunk]) -> int:
        """Their tokens count as having KV from here on."""
        num_prefill = 0
        for chunk in chunks:
            self._scheduler.count_prefill(chunk)
            chunk.sequence.stored_computed += chunk.num_new
            num_prefill += chunk.num_new
        return num_prefill

    def _go_on_by_rule(self, now_ps: int, chunks: list[Chunk], budget: int, rules: BatchRules) -> Stop:
        """The head of the queue is not plain, whether or not others were admitted to this step before it."""
        scheduler = self._scheduler
        self.plan = StepPlan(scheduler.step, now_ps, self._batch)
        self.plan.chunks = chunks
        self.plan.rejected, self._rejected = self._rejected, []
        scheduler.admissions.admit(self.plan, rules, budget)
        scheduler.seal(self.plan, rules)
        return Stop.DECIDED

    # ---- admission --------------------------------------------------------------------------------------------------

    def _admit(self, chunks: list[Chunk], budget: int, rules: BatchRules) -> int:
        """Admits heads of the queue, adding to `chunks`, until one has to wait or is not plain. Returns the budget that
        is left in the latter case, else 0.
        """
        running, waiting, max_num_seqs = self._running, self._waiting, self._scheduler.config.max_num_seqs
        while budget > 0 and waiting and running.num_sequences < max_num_seqs:
            request = waiting.head
            num_new = self._start(request, budget, rules)
            if num_new == NOT_PLAIN:
                return budget
            if num_new == 0 and request.status is not Status.DONE:
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
        lead = request.live[0]
        hit = tables.find_prefix(lead) if tables.prefix_caching else NO_HIT
        num_hit, num_known = hit.num_tokens, lead.stored_known
        if num_known - num_hit == 1 and num_known > request.num_prompt_tokens:
            return NOT_PLAIN  # it goes straight on with decoding
        num_new = first_chunk(lead, num_hit, budget, rules)
        if num_new == 0:
            return 0
        num_held, target_blocks = num_hit // tables.block_size, tables.allocation.target_blocks
        num_needed = target_blocks(request, num_hit + num_new) - num_held + hit.num_idle
        view.num_full_blocks = target_blocks(request, num_known) - num_held + hit.num_idle
        answer = self._admission.admit(request, num_needed, view)
        if answer is Admission.REJECT:
            scheduler.admissions.turn_away(request)
            self._rejected.append(request)
            return 0
        if answer is Admission.WAIT or num_needed > pool.num_available:
            return 0
        if num_hit:
            tables.adopt(lead, hit, readmission=request.status is Status.PREEMPTED)
        scheduler.admissions.enter(request, num_hit, scheduler.now_ps)
        lead.rank = request.rank
        self._running.prefills[lead.rank] = lead
        if pool.attribution is not None:
            pool.attribution.look_ahead(lead, num_hit)
        tables.extend(lead, num_new)
        scheduler.publication.scheduled(lead, num_new)
        return num_new

    # ---- further steps ----------------------------------------------------------------------------------------------

    def goes_on(self) -> bool:
        """Takes further steps of the span in flight, up to the horizon. Returns whether it had any left."""
        if self._num_steps == self._max_steps:
            return False
        self._lengthen(max(self._horizon(), self.end_ps + 1))
        return True

    @property
    def span_end_ps(self) -> int:
        """When the span in flight ends if it is not cut short, all of its steps taken."""
        return self._now_ps + even_total_ps(self._first_ps, self._growth_ps, self._max_steps)

    def catch_up(self, until_ps: float) -> None:
        """Takes the steps of the span in flight that begin before `until_ps`; `end_ps` is then when they end."""
        if self._num_steps < self._max_steps:
            self._lengthen(until_ps)

    def land(self) -> None:
        """The span in flight ends with the steps that were taken."""
        self._land()

    def _lengthen(self, until_ps: float) -> None:
        """To all steps that begin before the horizon."""
        first_ps, growth_ps, num_steps = self._first_ps, self._growth_ps, self._max_steps
        end_ps = self._now_ps + even_total_ps(first_ps, growth_ps, num_steps)
        if end_ps >= until_ps:
            num_steps = min(num_steps, even_num_begun(first_ps, growth_ps, int(until_ps) - self._now_ps))
            end_ps = self._now_ps + even_total_ps(first_ps, growth_ps, num_steps)
        self.end_ps = end_ps
        self._extend(num_steps)

    def _extend(self, num_steps: int) -> None:
        """Takes the blocks of the span's further steps, in order of steps, and of the running within each."""
        scheduler, batch, pool, tables = self._scheduler, self._batch, self._pool, self._tables
        first_step, clock, size, buckets = scheduler.step, batch.clock, tables.block_size, batch.buckets
        publishes = tables.prefix_caching
        recorder = self._recorder
        free, referenced = pool.free, recorder.step_referenced_blocks
        heads: list[int] = []
        values: list[int] = []
        owners: list[int] = []
        num_referenced = pool.num_referenced
        begun_before = recorder.num_steps_begun - self._num_steps
        most_blocks = ((num_steps - self._num_steps) // size + 1) * len(batch.members)
        is_plain = not publishes and most_blocks <= len(free)
        for step in range(self._num_steps, num_steps):
            crossing = buckets[clock % size]
            if not is_plain and (
                len(crossing) > len(free) or (publishes and (crossing or buckets[(clock + 1) % size]))
            ):
                pool.count_taken(num_referenced - pool.num_referenced)
                self._log.take_over(heads, values, owners)
                heads, values, owners = [], [], []
                batch.clock = batch.num_emitted = clock
                scheduler.now_ps = self._now_ps + even_total_ps(self._first_ps, self._growth_ps, step)
                self._log.step = first_step + step
                scheduler.growth.decode_step()
                num_referenced = pool.num_referenced
                recorder.num_steps_begun = begun_before + step
                recorder.on_step(pool, tables.num_surplus_tokens)
                clock += 1
                continue
            if crossing:
                num = len(crossing)
                heads += (first_step + step, Event.ALLOC, EACH, num)
                num_referenced += num
                for sequence in crossing.values():
                    block = free.pop()
                    table = sequence.tables[0]
                    table.append(block)
                    values.append(block.block_id)
                    owners.append(sequence.request.request_id)
                    if len(table) == sequence.num_peak_blocks:
                        tables.note_surplus(sequence)
                        place = begun_before + step
                        recorder.step_internal_tokens.note(place, tables.num_surplus_tokens)
            referenced.append(num_referenced)
            clock += 1
        recorder.num_steps_begun = begun_before + num_steps
        pool.count_taken(num_referenced - pool.num_referenced)
        self._log.take_over(heads, values, owners)
        batch.clock, batch.num_emitted = clock, clock - 1
        last = num_steps - 1
        scheduler.now_ps = self._now_ps + even_total_ps(self._first_ps, self._growth_ps, last)
        self._log.step = first_step + last
        self._num_steps = num_steps

    # ---- the end of a span ------------------------------------------------------------------------------------------

    def plan_in_flight(self) -> tuple[StepPlan, EvenDurations]:
        """The span that flies as the scheduler would have planned it: for whoever has to commit it by the rules."""
        plan = StepPlan(self._scheduler.step, self._now_ps, self._batch)
        plan.chunks = self._chunks
        plan.num_prefill_tokens, plan.num_decodes = self._num_prefill, self._num_decodes
        plan.decode_context_tokens, plan.num_filled_tokens = self._context_tokens, self._num_filled
        plan.max_steps = plan.num_steps = self._num_steps
        plan.num_running = self._num_running
        self._scheduler.in_flight = plan
        return plan, EvenDurations(self._first_ps, self._growth_ps, self._num_steps)

    def _land(self) -> bool:
        """The span has ended: tokens appear, sequences end and free their blocks. Returns whether anybody is done."""
        scheduler, batch, recorder, pool = self._scheduler, self._batch, self._recorder, self._pool
        now_ps = scheduler.now_ps = self.end_ps
        scheduler.step += self._num_steps
        batch.num_emitted = clock = batch.clock
        ends, members = batch.ends, batch.members
        ended: list[Sequence] = []
        while ends and ends[0][0] <= clock:
            end_clock, rank = heapq.heappop(ends)
            if rank in members and members[rank].end_clock == end_clock:
                ended.append(members[rank])
        for chunk in self._chunks:
            sequence = chunk.sequence
            if sequence.stored_computed == sequence.stored_known:
                self._end_prefill(sequence, now_ps, ended)
        if ended:
            self._log.step = scheduler.step - 1
            scheduler.in_flight = self._no_plan
            if len(ended) > 1:
                ended.sort(key=_rank)
            for sequence in ended:
                self._end(sequence)
        scheduler.in_flight = None
        if self._tables.prefix_caching:
            place = recorder.num_plans
            recorder.cached_blocks_after.note(place, pool.num_cached)
            recorder.orphan_blocks_after.note(place, pool.index.num_orphans)
        recorder.plans.extend(
            (
                self._num_steps,
                self._now_ps,
                self._first_ps,
                self._growth_ps,
                self._num_prefill,
                self._num_decodes,
                self._context_tokens,
                self._num_filled,
                self._num_decodes,
                self._num_running,
                pool.num_referenced,
            )
        )
        if not ended:
            return False
        self._on_done([sequence.request for sequence in ended], now_ps)
        return True

    def _end(self, sequence: Sequence) -> None:
        """As `Scheduler.end`; without prefix caching all blocks go back to the free stack as they are."""
        scheduler, request, pool, tables, batch = (
            self._scheduler,
            sequence.request,
            self._pool,
            self._tables,
            self._batch,
        )
        if tables.prefix_caching or request.num_samples > 1 or pool.num_shared or not pool.keeps_unhashed_apart:
            scheduler.end(sequence)
            return
        request.num_produced_tokens = batch.num_emitted + sequence.offset + 1 - request.num_prompt_tokens
        batch.leave(sequence)
        running, table = self._running, sequence.tables[0]
        del running.requests[request.rank]
        running.num_sequences -= 1
        request.rank = sequence.rank = -1
        request.live.clear()
        num_blocks = len(table)
        pool.num_referenced -= num_blocks
        pool.num_available += num_blocks
        self._log.blocks(Event.FREE, request.request_id, table[::-1])
        pool.free += table
        table.clear()
        tables.num_surplus_tokens -= sequence.num_surplus_tokens
        sequence.num_surplus_tokens = 0
        if self._tells_stops:
            self._admission.on_stop(request, scheduler.view)
        scheduler.done(request, Outcome.FINISHED)

    def _end_prefill(self, sequence: Sequence, now_ps: int, ended: list[Sequence]) -> None:
        """A complete prefill samples a token."""
        request = sequence.request
        if sequence.last_token_ps >= 0:
            self._recorder.on_late_token(now_ps - sequence.last_token_ps)
        if request.first_token_ps < 0:
            request.first_token_ps = now_ps
        sequence.stored_known += 1
        self._running.to_decode(sequence)
        if sequence.stored_known - request.num_prompt_tokens >= request.num_output_tokens:
            ended.append(sequence)


def _rank(sequence: Sequence) -> int:
    return sequence.rank
