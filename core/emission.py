"""Emission: the tokens of a step, the samples that start from a prompt, and who ends."""

from __future__ import annotations

from collections.abc import Mapping

from core.block_tables import BlockTables
from core.kv_group import num_usable_blocks
from core.plan import StepPlan
from core.recorder import Recorder
from core.request import Sequence, Status
from core.running import RunningRequests


class Emission:
    """Lets the tokens of a plan appear. Decodes that went on without a pause are not touched one by one.

    First `advance`: the tokens count as known. Then `tell`, when the time of their appearance is there.
    """

    def __init__(self, running: RunningRequests, tables: BlockTables, recorder: Recorder) -> None:
        self._running = running
        self._tables = tables
        self._recorder = recorder

    def advance(self, plan: StepPlan, stopped: frozenset[int] = frozenset()) -> list[Sequence]:
        """Returns the sequences that have all their tokens, or are `stopped` (by rank), in running order."""
        batch = self._running.batch
        batch.num_emitted = batch.clock
        for rank in plan.held:
            if rank in batch.members:  # else it was cancelled meanwhile
                self._running.hold(batch.members[rank], plan.start_ps)
        for sequence in plan.late:
            if sequence.batch is not None:
                del self._running.late[sequence.rank]
                plan.first_or_late.append((sequence, sequence.last_token_ps))
        ended = batch.pop_ended()
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.rank in self._running.prefills and sequence.stored_computed == sequence.stored_known:
                ended += self._end_prefill(sequence, plan)
        for rank in stopped:
            if rank in batch.members:
                ended.append(batch.members[rank])
        if len(ended) > 1:
            ended = sorted(set(ended), key=lambda sequence: sequence.rank)
        return ended

    def go_on_from(self, parents: Mapping[int, int]) -> None:
        """Beams go on from others, by rank. Those of a request that was cancelled meanwhile are gone."""
        members = self._running.batch.members
        chosen = {members[rank]: members[parent] for rank, parent in parents.items() if rank in members}
        self._tables.go_on_from(chosen)
        self._running.has_shared_tails = self._running.has_shared_tails or bool(chosen)

    def tell(self, plan: StepPlan, now_ps: int) -> None:
        """The plan's tokens appear now: notes first tokens, and the gaps of sequences that sat out before."""
        for sequence, last_token_ps in plan.first_or_late:
            request = sequence.request
            if request.status is Status.DONE:
                continue  # cancelled before its token came
            if last_token_ps >= 0:
                self._recorder.on_late_token(now_ps - last_token_ps)
            if request.first_token_ps < 0:
                request.first_token_ps = now_ps

    def _end_prefill(self, lead: Sequence, plan: StepPlan) -> list[Sequence]:
        """A complete prefill samples a token, as do the samples that share a fresh prompt. Returns those that end."""
        request = lead.request
        ended = []
        for sequence in [lead, *self._fork(lead)] if request.num_samples > 1 else [lead]:
            if sequence.stored_computed != sequence.stored_known:
                continue  # a sample that comes back: it still has outputs of its own to compute
            plan.first_or_late.append((sequence, sequence.last_token_ps))
            sequence.stored_known += 1
            self._running.to_decode(sequence)
            if sequence.num_outputs >= request.num_output_tokens:
                ended.append(sequence)
        return ended

    def _fork(self, lead: Sequence) -> list[Sequence]:
        """Starts the samples that waited for the prompt. They share its blocks; the partial one only when fresh."""
        request = lead.request
        siblings = [sequence for sequence in request.live if sequence.rank < 0]
        size = self._tables.block_size
        for sibling in siblings:
            is_fresh = sibling.num_outputs == 0
            num_shared = -(-request.num_prompt_tokens // size)
            if not is_fresh:  # the lead may have gone on, and left behind what the sample still attends to
                num_whole = request.num_prompt_tokens // size
                num_shared = num_usable_blocks(self._tables.groups, lead.tables, num_whole, size)
            self._tables.fork(lead, sibling, num_shared)
            sibling.stored_computed = request.num_prompt_tokens if is_fresh else num_shared * size
            self._running.start(sibling, request.rank + request.live.index(sibling))
            self._running.has_shared_tails = True
        return siblings
