"""A span of plain steps in flight: what it is, how it grows, how it ends."""

from __future__ import annotations

from heapq import heappop
from typing import Final

from core.durations import EvenDurations
from core.interfaces import AdmissionPolicy
from core.plan import Chunk, StepPlan
from core.progression import even_num_begun, even_total_ps
from core.request import Outcome, Request, Sequence
from core.scheduler import Scheduler
from core.units import NEVER_PS
from sim.span_blocks import SpanBlocks

_FINISHED: Final = Outcome.FINISHED  # to ask an Enum for a member takes longer


class Flight:
    """The steps taken so far of the span that runs, over the scheduler's own books. One object serves all spans.

    `num_steps` of at most `max_steps` are taken; `end_ps` is when those end, or, before the first is, when that ends.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tables = scheduler.tables
        self._pool = scheduler.tables.pool
        self._running = scheduler.running
        self._batch = scheduler.running.batch
        self._log = scheduler.log
        self._recorder = scheduler.recorder
        self._admission = scheduler.policies.admission
        self._blocks = SpanBlocks(scheduler)
        self._tells_stops = type(self._admission).on_stop is not AdmissionPolicy.on_stop
        self.no_plan = StepPlan(0, 0, self._batch)  # stands for it where only whether there is one matters
        self.chunks: list[Chunk] = []
        # As `Recorder` keeps it.
        self.now_ps = self.first_ps = self.growth_ps = self.end_ps = self.num_steps = self.max_steps = 0
        self.num_decodes = self.context_tokens = self.num_filled = self.num_prefill = self.num_running = 0

    @property
    def span_end_ps(self) -> int:
        """When the span in flight ends if it is not cut short, all of its steps taken."""
        return self.now_ps + even_total_ps(self.first_ps, self.growth_ps, self.max_steps)

    def catch_up(self, until_ps: int) -> None:
        """Takes the steps of the span in flight that begin before `until_ps`, at least the first; `end_ps` is then when
        they end.
        """
        if not self.num_steps or (self.end_ps < until_ps and self.num_steps < self.max_steps):
            self.lengthen(until_ps)

    def step_end_ps(self, now_ps: int) -> int:
        """When the step ends that runs at this time, be it taken yet or not; one that ends just now runs still."""
        if self.end_ps >= now_ps:
            return self.end_ps
        return self.now_ps + even_total_ps(self.first_ps, self.growth_ps, self.num_begun(now_ps))

    def num_begun(self, until_ps: int) -> int:
        """Steps of the span in flight that begin before `until_ps`, be they taken yet or not; at least the first."""
        if self.end_ps >= until_ps:
            return self.num_steps or 1
        return min(self.max_steps, even_num_begun(self.first_ps, self.growth_ps, until_ps - self.now_ps))

    def lengthen(self, until_ps: int) -> None:
        """To all steps that begin before the horizon."""
        first_ps, growth_ps, num_steps, now_ps = self.first_ps, self.growth_ps, self.max_steps, self.now_ps
        end_ps = now_ps + num_steps * first_ps + growth_ps * (num_steps * (num_steps - 1) // 2)
        if end_ps >= until_ps:
            num_steps = min(num_steps, even_num_begun(first_ps, growth_ps, until_ps - now_ps))
            end_ps = now_ps + num_steps * first_ps + growth_ps * (num_steps * (num_steps - 1) // 2)
        self.end_ps = end_ps
        blocks = self._blocks
        blocks.now_ps, blocks.first_ps, blocks.growth_ps = now_ps, first_ps, growth_ps
        blocks.take(self.num_steps, num_steps)
        self.num_steps = num_steps

    def as_plan(self) -> tuple[StepPlan, EvenDurations]:
        """The span that flies as the scheduler would have planned it: for whoever has to commit it by the rules."""
        plan = StepPlan(self._scheduler.step, self.now_ps, self._batch)
        plan.chunks = self.chunks
        plan.num_prefill_tokens, plan.num_decodes = self.num_prefill, self.num_decodes
        plan.decode_context_tokens, plan.num_filled_tokens = self.context_tokens, self.num_filled
        plan.max_steps = plan.num_steps = self.num_steps
        plan.num_running = self.num_running
        self._scheduler.in_flight = plan
        return plan, EvenDurations(self.first_ps, self.growth_ps, self.num_steps)

    def land(self) -> list[Request]:
        """The span has ended: tokens appear, sequences end and free their blocks. Returns who is done."""
        scheduler, batch, recorder, pool = self._scheduler, self._batch, self._recorder, self._pool
        now_ps = scheduler.now_ps = self.end_ps
        if now_ps > NEVER_PS:
            raise OverflowError(f"{now_ps} ps")
        scheduler.step += self.num_steps
        batch.num_emitted = clock = batch.clock
        ends, members = batch.ends, batch.members
        ended: list[Sequence] = []
        while ends and ends[0][0] <= clock:
            end_clock, rank = heappop(ends)
            if rank in members and members[rank].end_clock == end_clock:
                ended.append(members[rank])
        for chunk in self.chunks:
            sequence = chunk.sequence
            if sequence.stored_computed == sequence.stored_known:
                self._end_prefill(sequence, now_ps, ended)
        if ended:
            self._log.step = scheduler.step - 1
            scheduler.in_flight = self.no_plan
            if len(ended) > 1:
                ended.sort(key=_rank)
            for sequence in ended:
                self._end(sequence)
        scheduler.in_flight = None
        if pool.num_cached != recorder.cached_blocks_after.last:
            recorder.cached_blocks_after.note(recorder.num_plans, pool.num_cached)
        if pool.num_orphans != recorder.orphan_blocks_after.last:
            recorder.orphan_blocks_after.note(recorder.num_plans, pool.num_orphans)
        recorder.plans.new += (
            self.num_steps,
            self.now_ps,
            self.first_ps,
            self.growth_ps,
            self.num_prefill,
            self.num_decodes,
            self.context_tokens,
            self.num_filled,
            self.num_decodes,
            self.num_running,
            pool.num_referenced,
        )
        return [sequence.request for sequence in ended]

    def _end(self, sequence: Sequence) -> None:
        """As `Scheduler.end`."""
        scheduler, request, running = self._scheduler, sequence.request, self._running
        if request.num_samples > 1:
            scheduler.end(sequence)
            return
        request.num_produced_tokens = self._batch.num_emitted + sequence.offset + 1 - request.num_prompt_tokens
        self._batch.leave(sequence)
        del running.requests[request.rank]
        running.num_sequences -= 1
        request.rank = sequence.rank = -1
        request.live.clear()
        self._tables.release(sequence)
        if self._tells_stops:
            self._admission.on_stop(request, scheduler.view)
        scheduler.done(request, _FINISHED)

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
