"""What happened, step by step and request by request, as flat lists: the raw material of every metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from core.block_pool import BlockPool
from core.block_tables import BlockTables
from core.plan import StepPlan
from core.request import Request


@dataclass(slots=True)
class Recorder:
    """Columns per plan, per step and per irregular token gap; the requests that are done. Appending costs O(1) a step.

    A decoding sequence gets a token in every step, so its gaps are the times from one step's end to the next: they are
    not stored again. Only the gaps of sequences that sat out (preempted, passed over) are, in `late_gaps_ps`.
    """

    plan_num_steps: list[int] = field(default_factory=list)
    plan_start_ps: list[int] = field(default_factory=list)
    plan_decided_ps: list[int] = field(default_factory=list)  # before it starts only where plans are decided ahead
    plan_num_prefill_tokens: list[int] = field(default_factory=list)
    plan_num_decodes: list[int] = field(default_factory=list)
    plan_decode_context_tokens: list[int] = field(default_factory=list)  # of the plan's first step
    plan_num_regular_gaps: list[int] = field(default_factory=list)
    plan_num_lost_decodes: list[int] = field(default_factory=list)  # in the plan's last step
    plan_num_running: list[int] = field(default_factory=list)
    plan_num_preempted: list[int] = field(default_factory=list)
    plan_num_swapped_blocks: list[int] = field(default_factory=list)
    plan_num_moved_blocks: list[int] = field(default_factory=list)
    plan_referenced_blocks_after: list[int] = field(default_factory=list)  # when its ended sequences have freed theirs
    plan_cached_blocks_after: list[int] = field(default_factory=list)
    plan_orphan_blocks_after: list[int] = field(default_factory=list)
    step_evictions_before_end: list[int] = field(default_factory=list)  # in the run, this step's included
    step_duration_ps: list[int] = field(default_factory=list)
    step_referenced_blocks: list[int] = field(default_factory=list)
    step_cached_blocks: list[int] = field(default_factory=list)
    step_shared_references: list[int] = field(default_factory=list)  # to blocks, beyond the first of each
    step_orphan_blocks: list[int] = field(default_factory=list)
    step_reserved_tokens: list[int] = field(default_factory=list)
    step_internal_tokens: list[int] = field(default_factory=list)
    step_external_tokens: list[int] = field(default_factory=list)
    late_gaps_ps: list[int] = field(default_factory=list)
    done: list[Request] = field(default_factory=list)
    decides_ahead: bool = False  # a further step of a plan is decided when the step before it starts
    num_swap_fallbacks: int = 0  # victims that were to be swapped but had to be recomputed
    _num_preempted_before: int = 0  # in plans that had nothing to run: they belong to the next one

    def on_empty_plan(self, plan: StepPlan) -> None:
        """Nothing is carried out, but requests may have been preempted."""
        self._num_preempted_before += len(plan.preempted)

    def pop_preempted_before(self) -> int:
        """Preempted in the empty plans since the last one with work."""
        number, self._num_preempted_before = self._num_preempted_before, 0
        return number

    def on_steps(self, plan: StepPlan, tables: BlockTables, first: int, num_steps: int) -> None:
        """So many steps of the plan began, from its step `first` on, and that has taken its blocks; the others took
        none: in each of them the decodes fill a slot that was reserved.
        """
        pool = tables.pool
        self.step_referenced_blocks += [pool.num_referenced] * num_steps
        self.step_cached_blocks += [pool.num_cached] * num_steps
        self.step_shared_references += [pool.num_shared] * num_steps
        self.step_evictions_before_end += [pool.num_evictions] * num_steps
        self.step_orphan_blocks += [pool.index.num_orphans] * num_steps
        self.step_internal_tokens += [tables.num_surplus_tokens] * num_steps
        self.step_external_tokens += [tables.num_external_tokens(bool(plan.blocked))] * num_steps
        num_filled_a_step = plan.num_decodes * tables.num_groups
        num_slots = pool.num_referenced * tables.block_size - tables.num_surplus_tokens
        num_reserved = num_slots - plan.num_filled_tokens - first * num_filled_a_step
        self.step_reserved_tokens += [num_reserved - step * num_filled_a_step for step in range(num_steps)]

    def on_plan(self, plan: StepPlan, durations_ps: Sequence[int], pool: BlockPool) -> None:
        """A plan was carried out, and what ended with it has freed its blocks."""
        self.plan_num_steps.append(len(durations_ps))
        self.plan_start_ps.append(plan.start_ps)
        self.plan_decided_ps.append(plan.now_ps)
        self.plan_num_prefill_tokens.append(plan.num_prefill_tokens)
        self.plan_num_decodes.append(plan.num_decodes)
        self.plan_decode_context_tokens.append(plan.decode_context_tokens)
        self.plan_num_regular_gaps.append(plan.num_decodes - len(plan.late))
        self.plan_num_lost_decodes.append(plan.num_lost_decodes)
        self.plan_num_running.append(plan.num_running)
        self.plan_num_preempted.append(plan.num_preempted)
        self.plan_num_moved_blocks.append(len(plan.moves))
        self.plan_num_swapped_blocks.append(len(plan.swap_outs) + len(plan.swap_ins))
        self.plan_referenced_blocks_after.append(pool.num_referenced)
        self.plan_cached_blocks_after.append(pool.num_cached)
        self.plan_orphan_blocks_after.append(pool.index.num_orphans)
        self.step_duration_ps.extend(durations_ps)

    def on_late_token(self, gap_ps: int) -> None:
        self.late_gaps_ps.append(gap_ps)

    def on_done(self, request: Request) -> None:
        self.done.append(request)

    def forget_steps_not_run(self) -> None:
        """A run that is stopped leaves plans in flight, which have counted blocks for steps that did not happen."""
        num_steps = len(self.step_duration_ps)
        for column in (
            self.step_evictions_before_end,
            self.step_referenced_blocks,
            self.step_cached_blocks,
            self.step_shared_references,
            self.step_orphan_blocks,
            self.step_reserved_tokens,
            self.step_internal_tokens,
            self.step_external_tokens,
        ):
            del column[num_steps:]
