"""Plain steps without a plan object: what nothing but arithmetic decides is decided here, and all else by the rules.

Most steps of most runs are plain: every running request gets its tokens, the head of the queue starts or has to wait,
whoever has all its tokens leaves. `Express` takes such steps in one loop over the scheduler's own books. It decides
what `Scheduler.schedule` and `commit` would decide, block for block, and hands over to them, at a boundary between two
steps, wherever it meets anything else: memory that runs short, whoever comes back after a preemption, several samples.
So a run is the same with it and without, which a property test shows.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from core.block_tables import BlockTables
from core.id_tables import IdTables
from core.interfaces import BatchRules, Policy
from core.plan import Chunk, StepPlan
from core.publication import AtSchedule, Publication
from core.request import Request
from core.scheduler import Scheduler
from core.source import RequestSource
from core.units import NEVER_PS
from sim.cost_model import CostModel, StepWork
from sim.flight import Flight
from sim.plain_admission import PlainAdmissions


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
        and type(tables) in (BlockTables, IdTables)
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


def fixed_rules_of(scheduler: Scheduler) -> BatchRules | None:
    """The rules of every step, if the class that says what they are says that they never change."""
    batching = scheduler.policies.batching
    definer = next(kind for kind in type(batching).__mro__ if "compose" in vars(kind))
    return batching.fixed_rules(scheduler.view) if "fixed_rules" in vars(definer) else None


class Express:
    """One loop from boundary to boundary. `run` begins at one; where it halts FLYING, a span of plain steps runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        cost: CostModel,
        horizon: Callable[[], int],
        on_done: Callable[[list[Request], int], None],
    ) -> None:
        """`horizon()`: nothing happens before, but what the steps themselves bring about. `on_done` hears who is."""
        self._scheduler = scheduler
        self._cost = cost
        self._outside_ps = horizon
        self._on_done = on_done
        self._source: RequestSource | None = None
        self._tables = scheduler.tables
        self._pool = scheduler.tables.pool
        self._running = scheduler.running
        self._batch = scheduler.running.batch
        self._waiting = scheduler.waiting
        self._log = scheduler.log
        self._recorder = scheduler.recorder
        self._admissions = PlainAdmissions(scheduler)
        self._fixed_rules = fixed_rules_of(scheduler)
        self._work = StepWork(0)
        self.flight = Flight(scheduler)
        self.must_land = False  # where it halts FLYING: somebody came who could join before the span ends
        self.plan: StepPlan | None = None  # what the scheduler has decided, at the last Stop.DECIDED

    def draw_from(self, source: RequestSource) -> None:
        """Arrivals come straight from the source, and nothing else happens."""
        self._source = source

        def tell(requests: list[Request], now_ps: int) -> None:
            for request in requests:
                source.on_done(request, now_ps)

        self._on_done = tell

    def _horizon(self) -> int:
        if self._source is None:
            return self._outside_ps()
        next_ps = self._source.next_ps()
        return NEVER_PS if next_ps is None else next_ps

    # ---- the loop ---------------------------------------------------------------------------------------------------

    def land_and_run(self, now_ps: int) -> tuple[Stop, int]:
        """The span that flies ends now. As `run` from there."""
        self.land()
        return self.run(now_ps)

    def run(self, now_ps: int) -> tuple[Stop, int]:
        """Takes plain steps from the boundary at `now_ps` on. Returns why it halts, and at which boundary (FLYING: when
        the span ends).

        One long function on purpose: a call costs as much as half of what is to be done for a step.
        """
        scheduler, running, batch, waiting = self._scheduler, self._running, self._batch, self._waiting
        requests, prefills, members = running.requests, running.prefills, batch.members
        queued, source = waiting.entries, self._source
        tells = source is None or source.hears_of_ends
        pool, tables, recorder, log = self._pool, self._tables, self._recorder, self._log
        compose, view, growth = scheduler.policies.batching.compose, scheduler.view, scheduler.growth
        fixed_rules = self._fixed_rules
        flight, admissions, max_num_seqs = self.flight, self._admissions, scheduler.config.max_num_seqs
        self.must_land = False
        if not self._is_plain():
            return Stop.BY_RULE, now_ps
        until_ps = self._horizon()
        while True:
            # What has come by now.
            while until_ps <= now_ps:
                if self._take(now_ps) is None:
                    return Stop.SHARED, now_ps
                until_ps = self._horizon()
            if not requests and not queued:
                if source is None or until_ps == NEVER_PS:
                    return Stop.IDLE, now_ps
                now_ps = until_ps
                continue

            # Who gets tokens in the span's first step, and blocks for them; how many steps may follow.
            rules = compose(view) if fixed_rules is None else fixed_rules
            num_decodes = len(members)
            budget = rules.budget_tokens - num_decodes
            if budget < 0 or rules.prompts_alone or not rules.admits:
                return Stop.BY_RULE, now_ps
            max_steps = self._num_undisturbed_steps()
            if max_steps:
                self._take_off(now_ps, [], max_steps)
                flight.num_steps = 0
                if source is None and flight.span_end_ps >= until_ps:
                    return Stop.FLYING, flight.span_end_ps  # it takes its blocks when somebody asks for them
                flight.lengthen(until_ps)
            else:
                step = scheduler.step
                chunks: list[Chunk] = []
                if prefills:
                    fitting = growth.fitting_chunks(rules)
                    if fitting is None:
                        return Stop.BY_RULE, now_ps
                    chunks = fitting
                elif len(batch.crossing()) > pool.num_available:
                    return Stop.BY_RULE, now_ps
                scheduler.now_ps = now_ps
                log.step = step
                if chunks:
                    budget -= sum([chunk.num_new for chunk in chunks])
                    growth.take_in_order(chunks, flight.no_plan)
                else:
                    growth.decode_step()
                if queued and budget > 0 and running.num_sequences < max_num_seqs:
                    budget = admissions.admit(chunks, budget, rules)
                    if budget > 0:
                        return self._go_on_by_rule(now_ps, chunks, budget, rules), now_ps
                if not chunks and not num_decodes:
                    scheduler.step = step + 1
                    self._tell_rejected(now_ps)
                    until_ps = self._horizon()
                    if source is None or until_ps == NEVER_PS:
                        return Stop.IDLE, now_ps
                    now_ps = until_ps if until_ps > now_ps else now_ps
                    continue
                recorder.on_step(pool, tables.num_surplus_tokens)
                max_steps = 1
                if not chunks and not admissions.rejected:
                    max_steps = scheduler.span_limit.num_plain_steps(now_ps, step, rules)
                self._take_off(now_ps, chunks, max_steps)
                batch.clock += 1
                if admissions.rejected:
                    self._tell_rejected(now_ps)
                    until_ps = self._horizon()
                if max_steps > 1 and flight.end_ps < until_ps:
                    flight.lengthen(until_ps)
            end_ps = flight.end_ps

            # What comes while it flies.
            must_land = False
            while until_ps <= end_ps:
                joins = self._take(end_ps)
                if joins is None:
                    self.must_land = must_land
                    return Stop.FLYING, end_ps
                until_ps = self._horizon()
                must_land = must_land or joins
                if not must_land and flight.num_steps < max_steps and end_ps < until_ps:
                    flight.lengthen(until_ps)
                    end_ps = flight.end_ps
            now_ps = end_ps
            done = flight.land()
            if done and tells:
                self._on_done(done, now_ps)
                until_ps = self._horizon()

    def _num_undisturbed_steps(self) -> int:
        """Steps in which all that runs decodes, nobody can come in or end but by the last, and blocks are there; 0 if
        that takes a closer look.
        """
        batch, running, tables = self._batch, self._running, self._tables
        num_decodes = len(batch.members)
        if running.prefills or not num_decodes or self._recorder.num_preempted_before:
            return 0
        if self._waiting.entries and (
            tables.prefix_caching or running.num_sequences < self._scheduler.config.max_num_seqs
        ):
            return 0
        num_steps = batch.steps_to_next_end()
        return num_steps if self._pool.num_available >= (num_steps // tables.block_size + 1) * num_decodes else 0

    def _take_off(self, now_ps: int, chunks: list[Chunk], max_steps: int) -> None:
        """What the span's first step has to compute, and how long that takes."""
        batch, pool, recorder, work, flight = self._batch, self._pool, self._recorder, self._work, self.flight
        num_decodes, prefills = len(batch.members), self._running.prefills
        num_filled = context_tokens = batch.offset_sum + (batch.clock + 1) * num_decodes
        num_prefill = 0
        if chunks:
            num_prefill = self._count_prefills(chunks)
            work.chunks = tuple([(chunk.num_new, chunk.num_computed) for chunk in chunks])
        else:
            work.chunks = ()
        if prefills:
            num_filled += sum([sequence.stored_computed for sequence in prefills.values()])
        if pool.num_shared:
            num_filled -= pool.num_shared * self._tables.block_size
        if recorder.num_preempted_before:
            recorder.preempted[recorder.num_plans] = recorder.pop_preempted_before()
        work.step, work.num_decodes, work.decode_context_tokens = self._scheduler.step, num_decodes, context_tokens
        first_ps = self._cost.step_ps(work)
        flight.now_ps, flight.first_ps, flight.chunks = now_ps, first_ps, chunks
        flight.growth_ps = 0 if max_steps == 1 else self._cost.growth_ps(work) or 0
        flight.num_steps, flight.max_steps, flight.num_prefill = 1, max_steps, num_prefill
        flight.num_decodes, flight.context_tokens, flight.num_filled = num_decodes, context_tokens, num_filled
        flight.num_running = len(self._running.requests)
        flight.end_ps = now_ps + first_ps
        self._scheduler.in_flight = flight.no_plan

    def _take(self, until_ps: int) -> bool | None:
        """The next arrival, if it comes no later than that. Returns whether it may join before the span ends; None if
        something else comes first, or there is no source to ask.
        """
        if self._source is None:
            return None
        request = self._source.pop_arrival(until_ps)
        if request is None:
            return None
        scheduler = self._scheduler
        if scheduler.add(request, request.arrival_ps):
            return scheduler.wants_step_now(request)
        self._on_done([request], request.arrival_ps)
        return False

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
        if self._admissions.rejected:
            rejected, self._admissions.rejected = self._admissions.rejected, []
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
        self.plan.rejected, self._admissions.rejected = self._admissions.rejected, []
        scheduler.admissions.admit(self.plan, rules, budget)
        scheduler.seal(self.plan, rules)
        return Stop.DECIDED

    # ---- the span in flight -----------------------------------------------------------------------------------------

    def goes_on(self) -> bool:
        """Takes further steps of the span in flight, up to the horizon. Returns whether it had any left."""
        flight = self.flight
        if flight.num_steps == flight.max_steps:
            return False
        flight.lengthen(max(self._horizon(), flight.end_ps + 1))
        return True

    def land(self) -> bool:
        """The span in flight ends with the steps that were taken. Returns whether anybody is done."""
        done = self.flight.land()
        if done:
            self._on_done(done, self.flight.end_ps)
        return bool(done)
