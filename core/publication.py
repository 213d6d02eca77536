"""When the content of full blocks enters the prefix index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from core.block_tables import BlockTables
from core.plan import StepPlan
from core.request import Sequence
from core.running import RunningRequests

_NONE: Mapping[int, Sequence] = {}


class Publication:
    """Never: what prefix caching turned off comes to.

    `lead_tokens`: when a sequence with KV of `n` tokens is scheduled to decode, its blocks up to `n + lead_tokens` are
    public.
    """

    lead_tokens = 0
    follows_decodes: ClassVar[bool] = False  # whether a step in which a sequence decodes can publish anything of it

    def __init__(self, running: RunningRequests, tables: BlockTables) -> None:
        self._running = running
        self._tables = tables

    def due_decodes(self) -> Mapping[int, Sequence]:
        """By rank, the members of the decode batch for whom `scheduled(member, 1)` would publish anything."""
        return _NONE

    def scheduled(self, sequence: Sequence, num_new: int) -> None:
        """The step being planned has blocks for `num_new` tokens of the sequence."""

    def decodes_scheduled(self) -> None:
        """As `scheduled(member, 1)` for each of `due_decodes`, in running order."""
        due = self.due_decodes()
        if due:
            for sequence in due.values():
                self.scheduled(sequence, 1)

    def windows_move(self, sequence: Sequence) -> None:
        """Blocks that no later token of it attends to are about to leave its tables."""

    def chunks_ended(self, plan: StepPlan) -> None:
        """The plan's step came to its end. Samples that start from a prompt do so after this."""

    def passed_over(self, sequence: Sequence, num_computed: int) -> None:
        """Its newest token is known, but the step that was decided meanwhile leaves it out (async scheduling only)."""

    def ended(self, sequence: Sequence) -> None:
        """Its last step came to its end; it still has its blocks."""

    def interrupted(self, sequence: Sequence) -> None:
        """It is about to lose its blocks before its end: cancelled."""

    def preempted(self, sequence: Sequence) -> None:
        """It is about to lose its blocks before its end, but will come back."""
        self.interrupted(sequence)


class AtSchedule(Publication):
    """As soon as the tokens that fill it are scheduled, before the KV exists: a later admission of the very step can
    hit it (vLLM).
    """

    lead_tokens = 1
    follows_decodes = True

    def due_decodes(self) -> Mapping[int, Sequence]:
        return self._running.batch.filling()

    def scheduled(self, sequence: Sequence, num_new: int) -> None:
        self._tables.publish(sequence, sequence.num_computed + num_new)

    def decodes_scheduled(self) -> None:
        due = self._running.batch.filling()
        if due:
            self._tables.publish_filled(due.values())


class OnceKnown(Publication):
    """At schedule too, but only tokens that are known; a decoding sequence's newest is still in flight (vLLM's async
    scheduling). So what one step fills is published with the next.
    """

    follows_decodes = True

    def due_decodes(self) -> Mapping[int, Sequence]:
        return self._running.batch.crossing()

    def scheduled(self, sequence: Sequence, num_new: int) -> None:
        has_one_in_flight = sequence.batch is not None and sequence.rank not in self._running.late
        num_known = sequence.num_known - has_one_in_flight
        self._tables.publish(sequence, min(sequence.num_computed + num_new, num_known))

    def passed_over(self, sequence: Sequence, num_computed: int) -> None:
        self._tables.publish(sequence, num_computed)

    def ended(self, sequence: Sequence) -> None:
        self._tables.publish(sequence, sequence.num_computed)


class AtStepEnd(Publication):
    """When the step that computed it has ended, so that only later steps hit it. What a decode fills waits for the
    sequence's next step or its end.
    """

    follows_decodes = True

    def due_decodes(self) -> Mapping[int, Sequence]:
        return self._running.batch.crossing()

    def scheduled(self, sequence: Sequence, num_new: int) -> None:
        self._tables.publish(sequence, sequence.num_computed)

    def windows_move(self, sequence: Sequence) -> None:
        """A window of one token moves on from a block with the very step that fills it."""
        self._tables.publish(sequence, sequence.num_computed)

    def chunks_ended(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            if chunk.sequence.rank >= 0:
                self._tables.publish(chunk.sequence, chunk.sequence.num_computed)

    def ended(self, sequence: Sequence) -> None:
        self._tables.publish(sequence, sequence.num_computed)

    def interrupted(self, sequence: Sequence) -> None:
        self.ended(sequence)


class OnceComputed(Publication):
    """When a chunk has been computed, and at the sequence's end (SGLang). What decodes fill waits for the end; a
    preempted sequence publishes nothing more.
    """

    def chunks_ended(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            if chunk.sequence.rank >= 0:
                self.ended(chunk.sequence)

    def ended(self, sequence: Sequence) -> None:
        self._tables.publish(sequence, sequence.num_computed)

    def interrupted(self, sequence: Sequence) -> None:
        self.ended(sequence)

    def preempted(self, sequence: Sequence) -> None:
        pass
