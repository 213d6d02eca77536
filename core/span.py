"""How many alike steps may follow one another before anything can change by itself."""

from __future__ import annotations

from collections.abc import Callable

from core.block_tables import BlockTables
from core.interfaces import BatchRules, Policy
from core.plan import StepPlan
from core.publication import Publication
from core.request import Sequence
from core.running import RunningRequests
from core.waiting_queue import WaitingQueue


class SpanLimit:
    """Up to the first end, the first step at which blocks could run short, or that could let the queue's head in.

    Asked when the step's own blocks are taken, before its tokens count as having KV.
    """

    def __init__(
        self,
        running: RunningRequests,
        waiting: WaitingQueue,
        tables: BlockTables,
        policies: tuple[Policy, ...],
        max_num_seqs: int,
        publication: Publication,
    ) -> None:
        self._running = running
        self._waiting = waiting
        self._tables = tables
        self._max_num_seqs = max_num_seqs
        self._publication = publication
        self.num_refused = 0  # plans that could have gone on, but for a rule by which each step is decided anew
        self._changing = [policy for policy in policies if type(policy).next_change is not Policy.next_change]

    def num_steps(self, plan: StepPlan, rules: BatchRules) -> int:
        """At least 1: the step that was just planned."""
        copies = plan.copies or plan.swap_ins or plan.moves
        is_plain = not (plan.chunks or plan.held or plan.late or plan.preempted or copies)
        if not is_plain or self._running.late or self._running.has_shared_tails:
            return 1
        if self._tables.is_windowed or self._running.searches or self._order_may_change():
            return self._refused()
        return self.num_plain_steps(plan.now_ps, plan.step, rules)

    def num_plain_steps(self, now_ps: int, step: int, rules: BatchRules) -> int:
        """As `num_steps`, of a plan in which the whole batch decodes and nothing else happens."""
        most = self._running.batch.steps_to_next_end()
        for policy in self._changing:
            change = policy.next_change(now_ps, step)
            if change is not None:
                if change.time_ps is not None:
                    return self._refused()
                if change.step is not None:
                    most = min(most, max(1, change.step - step))
        if self._tables.is_on_demand:
            most = self._while_blocks_last(most, self._tables.pool.num_available)
        else:
            most = self._before_growth(most)
        if most > 1 and self._head_waits_for_memory():
            has_changed = self._running.batch.crossing() or self._publication.due_decodes()
            if rules.prompts_alone and has_changed:
                return 1  # after the head was looked at
            most = self._while_head_must_wait(most)
        return most

    def _refused(self) -> int:
        """One step: what comes next cannot be foretold, though nothing need happen."""
        self.num_refused += self._running.batch.steps_to_next_end() > 1
        return 1

    def _order_may_change(self) -> bool:
        """Does each step ask anew who of the waiting comes next?"""
        has_slot = self._running.num_sequences < self._max_num_seqs
        return self._waiting.is_reranked and has_slot and bool(self._waiting)

    def _while_blocks_last(self, most: int, num_blocks: int) -> int:
        """Steps whose decodes take no more than `num_blocks`, the first step's own already taken."""
        batch, num_groups = self._running.batch, len(self._tables.groups)
        if num_blocks >= (most // self._tables.block_size + 1) * len(batch) * num_groups:
            return most
        for num_steps in range(1, most):
            num_blocks -= len(batch.crossing(num_steps)) * num_groups
            if num_blocks < 0:
                return num_steps
        return most

    def _before_growth(self, most: int) -> int:
        """Steps before the first in which a member has used up its blocks: that is planned, it may take any number."""
        for num_steps in range(1, most):
            crossing = self._running.batch.crossing(num_steps).values()
            if any(self._tables.is_full(sequence, num_steps) for sequence in crossing):
                return num_steps
        return most

    def _head_waits_for_memory(self) -> bool:
        if not self._waiting or not self._tables.prefix_caching:
            return False
        num_wanted = self._running.num_sequences + len(self._waiting.head.live)
        return num_wanted <= self._max_num_seqs

    def _while_head_must_wait(self, most: int) -> int:
        """Without a release, only a change of what it would find in the cache can let the head in: by a publication
        (which precedes admission within a step), or by an eviction that leaves it fewer blocks to adopt than it
        costs.
        """
        if not self._tables.ignores_repeated_look_ups:
            return self._refused()
        head, num_free = self._waiting.head, self._tables.pool.num_free
        if head.swapped is not None:
            return self._before_publication(self._while_blocks_last(most, num_free), lambda index, sequence: True)
        hit = self._tables.find_prefix(head.live[0])
        if hit.num_idle and not self._tables.eviction_is_prefix_closed:
            most = self._while_blocks_last(most, num_free)
        num_hits = hit.num_tokens // self._tables.block_size
        missing = head.live[0].keys.key(num_hits)
        return self._before_publication(
            most, lambda index, sequence: index == num_hits and sequence.keys.key(index) == missing
        )

    def _before_publication(self, most: int, matters: Callable[[int, Sequence], bool]) -> int:
        """Steps before the first in which a member publishes a block (by its index in the table) that matters."""
        if not self._publication.follows_decodes:
            return most
        lead = self._publication.lead_tokens
        for num_steps in range(1, most):
            for sequence in self._running.batch.crossing(num_steps + lead).values():
                if matters((sequence.num_computed + num_steps + lead) // self._tables.block_size - 1, sequence):
                    return num_steps
        return most
