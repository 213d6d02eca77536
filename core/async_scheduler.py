"""Async scheduling: a step is decided while the one before it still runs (vLLM 0.33's default).

Decisions count on the tokens that are in flight, one for each sequence that the running step samples for. They lag in
two things: whoever ends with the running step keeps its slot and blocks for one more decision, and blocks are published
only once all of their tokens are known.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from core.block_tables import BlockTables
from core.decision_log import DecisionLog
from core.durations import total_ps
from core.interfaces import Preemption
from core.plan import StepPlan, StepResult
from core.publication import OnceKnown, Publication
from core.recorder import Recorder
from core.request import Outcome, Request, Sequence, Status
from core.scheduler import Policies, Scheduler, SchedulerConfig


class AsyncScheduler(Scheduler):
    """Two plans in flight. The order of calls is `schedule`, then `commit` of the plan before, if there was one.

    A driver sets a plan's `start_ps` when it begins to run, and calls `schedule` when the last step of the running plan
    begins. Requests of several samples are rejected.
    """

    def __init__(
        self, config: SchedulerConfig, tables: BlockTables, policies: Policies, log: DecisionLog, recorder: Recorder
    ) -> None:
        super().__init__(config, tables, policies, log, recorder)
        recorder.decides_ahead = True
        self._running_plan: StepPlan | None = None  # its tokens are counted on, but not there yet
        self._ending: list[tuple[int, Sequence]] = []  # (rank, sequence) whose last token the running plan brings
        self._preempted_with_token: list[Sequence] = []  # that wait, and will get a token from the running plan
        self._held: set[int] = set()  # ranks that the plan after it passes over

    def _publication_class(self) -> type[Publication]:
        return OnceKnown if self.tables.prefix_caching else Publication

    @property
    def _is_busy(self) -> bool:
        return self.in_flight is not None or self._running_plan is not None

    def add(self, request: Request, now_ps: int) -> bool:
        if request.num_samples > 1 and not request.reject_reason:
            request.reject_reason = f"wants {request.num_samples} samples: async scheduling serves one a request"
        return super().add(request, now_ps)

    # ---- one step -------------------------------------------------------------------------------------------------

    def schedule(self, now_ps: int) -> StepPlan | None:
        """As in `Scheduler`. Until the running plan is committed, its tokens count as known and none of them ends."""
        if self.in_flight is not None:
            self._count_on(self.in_flight)
        plan = super().schedule(now_ps)
        self._held = set() if plan is None else plan.held
        if plan is not None and not plan.is_empty:
            self.step += 1
            if self._ending:
                plan.max_steps = 1  # what they free may change the next decision
        return plan

    def _count_on(self, plan: StepPlan) -> None:
        self.in_flight, self._running_plan = None, plan
        self._preempted_with_token = []
        ended = self._emission.advance(plan)
        self._ending = [(sequence.rank, sequence) for sequence in ended]
        for sequence in ended:
            self.running.retire(sequence, self.now_ps)

    def extend(self, plan: StepPlan, durations_ps: SequenceOf[int]) -> None:
        """As in `Scheduler`; a further step is decided when the one before it begins."""
        decided_apart_ps = (plan.start_ps - plan.now_ps, *durations_ps[:-1])
        super().extend(plan, decided_apart_ps)
        self.step = plan.step + plan.num_steps

    def _preempt(self, preemption: Preemption, plan: StepPlan) -> None:
        """The token in flight is not lost: it joins the victim's text, and may be its last."""
        sequence = preemption.request.live[0]
        if self._has_token_in_flight(sequence):
            self._preempted_with_token.append(sequence)
        super()._preempt(preemption, plan)

    def _has_token_in_flight(self, sequence: Sequence) -> bool:
        """Does the running plan, which is not committed yet, bring it a token that counts as known already?"""
        if self._running_plan is None:
            return False
        if sequence.batch is not None:
            return sequence.rank not in self.running.late
        return any(sequence is other for _, other in self._ending) or any(
            sequence is other for other in self._preempted_with_token
        )

    def num_in_flight_tokens(self, sequence: Sequence) -> int:
        if self._running_plan is None:
            return 0
        for chunk in self._running_plan.chunks:
            if chunk.sequence is sequence:
                return chunk.num_new
        return int(self._has_token_in_flight(sequence))

    # ---- what came of it ------------------------------------------------------------------------------------------

    def cancel(self, request: Request, now_ps: int) -> None:
        if request.status is not Status.DONE and request.live and self._has_token_in_flight(request.live[0]):
            self._lose_token(request)
        super().cancel(request, now_ps)

    def _lose_token(self, request: Request) -> None:
        plan = self._running_plan
        assert plan is not None
        request.num_produced_tokens -= 1
        self.running.batch.count_output(request.tenant, -1)
        if all(sequence is not request.live[0] for sequence, _ in plan.first_or_late):
            plan.num_lost_decodes += 1

    def commit(self, plan: StepPlan, result: StepResult) -> list[Request]:
        """The running plan was carried out: its tokens are there, those that end with it free their blocks."""
        assert plan is self._running_plan, "the next step is decided before the output of the last is looked at"
        self.now_ps = plan.start_ps + total_ps(result.durations_ps)
        self.log.step = self.step - 1
        self._emission.tell(plan, self.now_ps)
        for sequence in self._preempted_with_token:
            sequence.last_token_ps = self.now_ps
        done = self._settle()
        self._running_plan = None
        self.recorder.on_plan(plan, result.durations_ps, self.tables.pool)
        return done

    def _settle(self) -> list[Request]:
        """In running order: publishes what the next step, which passes them over, did not; ends what is complete."""
        members = self.running.batch.members
        held = [(rank, members[rank]) for rank in self._held if rank in members]
        done = []
        for _, sequence in sorted([*self._ending, *held], key=lambda item: item[0]):
            if sequence.rank >= 0:
                counted_already = self.in_flight is not None  # the step that holds it has advanced the batch's clock
                self.publication.passed_over(sequence, sequence.num_computed - counted_already)
                if self.in_flight is None:
                    self.running.pause(sequence, self.now_ps)  # by an empty plan, which is not carried out
            elif sequence.request.status is not Status.DONE:
                self.end(sequence)
                done.append(sequence.request)
        self._ending = []
        return done

    def end(self, sequence: Sequence) -> bool:
        request = sequence.request
        if request.status is Status.RUNNING:
            return super().end(sequence)
        request.num_produced_tokens += sequence.num_outputs
        request.live.remove(sequence)
        self.waiting.remove(request)
        self.tables.swapping.forget(request)
        self.done(request, Outcome.FINISHED)
        return True
