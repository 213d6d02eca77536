"""The running loop of a step: room for every running sequence's next tokens, and preemption where there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from core.block_tables import BlockTables
from core.interfaces import BatchRules, Preemption, PreemptionPolicy, PreemptMode, Shortage
from core.plan import Chunk, StepPlan
from core.publication import Publication
from core.request import Request, Sequence
from core.running import RunningRequests


class Growth:
    """Two forms of one rule: where everything fits only sequences that need a block are touched, else `_by_rule` walks.

    Which form runs depends on the state alone, so spans and single steps take the same blocks in the same order.
    """

    def __init__(
        self,
        running: RunningRequests,
        tables: BlockTables,
        preemption: PreemptionPolicy,
        preempt: Callable[[Preemption, StepPlan], None],
        publication: Publication,
        own_preemption_ends_step: bool,
        num_in_flight: Callable[[Sequence], int],
    ) -> None:
        self._running = running
        self._tables = tables
        self._publication = publication
        self._preemption = preemption
        self._preempt = preempt
        self._own_preemption_ends_step = own_preemption_ends_step
        self._num_in_flight = num_in_flight

    def grow(self, plan: StepPlan, rules: BatchRules) -> int:
        """Fills the plan with the running requests' work and returns the token budget that is left for admissions."""
        chunks = self.fitting_chunks(rules)
        if chunks is None:
            return self._by_rule(plan, rules)
        if not chunks:
            self.decode_step()
            return rules.budget_tokens - len(self._running.batch)
        plan.chunks = chunks
        self.take_in_order(chunks, plan)
        return rules.budget_tokens - len(self._running.batch) - sum(chunk.num_new for chunk in chunks)

    def grow_prefills(self, plan: StepPlan, rules: BatchRules) -> int:
        """As `grow`, but for the running prompts only."""
        if not self._running.prefills:
            return rules.budget_tokens
        budget, scheduled = self._walk(plan, rules, _is_prefill)
        self._note_chunks(plan, scheduled)
        return budget

    # ---- where everything fits ------------------------------------------------------------------------------------

    def fitting_chunks(self, rules: BatchRules) -> list[Chunk] | None:
        """The prefills' chunks if every decode gets its token and all blocks are there; else None: walk the rule."""
        running, tables = self._running, self._tables
        if running.late or running.has_shared_tails or tables.is_windowed:
            return None
        budget = rules.budget_tokens - len(running.batch)
        if budget < 0:
            return None
        chunks = []
        num_needed = tables.num_needed_by_decodes(running.batch.crossing().values())
        for rank, sequence in sorted(running.prefills.items()):
            num_computed = sequence.num_computed
            num_new = limited(sequence.num_known - num_computed, rules)
            if num_new > budget:
                if rank != running.last_rank:
                    return None
                num_new = budget
            if num_new:
                chunks.append(Chunk(sequence, num_computed, num_new))
                num_needed += tables.num_needed(sequence, num_new, num_computed, len(sequence.tables[0]))
                budget -= num_new
        if num_needed and tables.is_contiguous:
            return None  # whoever outgrows its run moves: that each has room does not mean that all have
        return chunks if num_needed <= tables.pool.num_available else None

    def take_in_order(self, chunks: list[Chunk], plan: StepPlan) -> None:
        """Blocks, then registrations, of the decodes and chunks that need any, in running order."""
        for _, sequence, num_new in _in_order(self._running.batch.crossing(), chunks):
            self._tables.grow(sequence, num_new, plan)
        for _, sequence, num_new in _in_order(self._publication.due_decodes(), chunks):
            self._publication.scheduled(sequence, num_new)

    def decode_step(self) -> None:
        """Blocks and registrations of one step in which all members decode and nothing else happens."""
        crossing = self._running.batch.crossing()
        if crossing:
            self._tables.append_blocks(crossing.values())
        self._publication.decodes_scheduled()

    # ---- the rule, request by request -----------------------------------------------------------------------------

    def _by_rule(self, plan: StepPlan, rules: BatchRules) -> int:
        budget, scheduled = self._walk(plan, rules, _is_any)
        self._note_chunks(plan, scheduled)
        self._note_decodes(plan, scheduled)
        return budget

    def _walk(
        self, plan: StepPlan, rules: BatchRules, is_due: Callable[[Sequence], bool]
    ) -> tuple[int, dict[int, int]]:
        """Serves the sequences that are due. Returns the budget left, and the tokens scheduled by rank."""
        running = self._running
        budget = rules.budget_tokens
        scheduled: dict[int, int] = {}
        for request in list(running):
            if budget <= 0:
                break
            if request.is_beam_search and budget < sum(sequence.batch is not None for sequence in request.live):
                continue  # its beams advance together
            for sequence in sorted(request.live, key=lambda s: s.rank):
                if request not in running or sequence.rank < 0 or budget <= 0 or not is_due(sequence):
                    continue
                num_new = min(limited(sequence.num_known - sequence.num_computed, rules), budget)
                budget += self._make_room(sequence, num_new, plan, scheduled)
                if self._own_preemption_ends_step and request not in running:
                    return budget, scheduled
                if request in running and self._has_room(sequence, num_new):
                    self._tables.grow(sequence, num_new, plan)
                    self._publication.scheduled(sequence, num_new)
                    scheduled[sequence.rank] = num_new
                    budget -= num_new
            if request in running and _is_split(request, scheduled):
                budget += sum(scheduled.pop(sequence.rank, 0) for sequence in request.live)
                self._preempt(Preemption(request, PreemptMode.RECOMPUTE), plan)
        return budget, scheduled

    def _has_room(self, sequence: Sequence, num_new: int, num_spare_blocks: int = 0) -> bool:
        num_needed = self._tables.num_needed(sequence, num_new, sequence.num_computed, len(sequence.tables[0]))
        has_spare = num_needed + num_spare_blocks <= self._tables.pool.num_available
        return has_spare and self._tables.can_take(num_needed)

    def _make_room(self, sequence: Sequence, num_new: int, plan: StepPlan, scheduled: dict[int, int]) -> int:
        """Preempts until the sequence fits, is a victim itself, or nobody is named. Returns the tokens given back."""
        request = sequence.request
        given_back = num_spare_blocks = 0
        if self._tables.is_windowed:
            self._publication.windows_move(sequence)
            self._tables.drop_expired(sequence, sequence.num_computed - self._num_in_flight(sequence), plan)
        while request in self._running and not self._has_room(sequence, num_new, num_spare_blocks):
            plan.blocked.append(request)
            needed = self._tables.num_needed(sequence, num_new, sequence.num_computed, len(sequence.tables[0]))
            shortage = Shortage(max(needed - self._tables.pool.num_available, 1), 0)  # 1: no hole is long enough
            preemption = self._preemption.select(self._running, shortage, request)
            if preemption is None:
                break
            for victim in preemption.request.live:
                given_back += scheduled.pop(victim.rank, 0)
            self._preempt(preemption, plan)
            num_spare_blocks = self._preemption.headroom_blocks(self._running)
        return given_back

    def _note_chunks(self, plan: StepPlan, scheduled: dict[int, int]) -> None:
        running = self._running
        for rank, num_new in sorted(scheduled.items()):
            sequence = running.prefills.get(rank)
            if sequence is not None:
                plan.chunks.append(Chunk(sequence, sequence.num_computed, num_new))

    def _note_decodes(self, plan: StepPlan, scheduled: dict[int, int]) -> None:
        """Those that are late, and those that are held."""
        running = self._running
        plan.late = [sequence for rank, sequence in sorted(running.late.items()) if rank in scheduled]
        plan.held = {rank for rank in running.batch.members if rank not in scheduled}
        running.has_shared_tails = running.has_shared_tails and bool(plan.held)


def _is_split(request: Request, scheduled: dict[int, int]) -> bool:
    """Have some beams of a search room for their next token, and others none?"""
    if not request.is_beam_search:
        return False
    has_room = {sequence.rank in scheduled for sequence in request.live if sequence.batch is not None}
    return len(has_room) == 2


def _in_order(decodes: Mapping[int, Sequence], chunks: list[Chunk]) -> list[tuple[int, Sequence, int]]:
    """Rank, sequence and tokens of these members and chunks, both in running order."""
    work = [(chunk.sequence.rank, chunk.sequence, chunk.num_new) for chunk in chunks]
    if decodes:
        work += [(rank, sequence, 1) for rank, sequence in decodes.items()]
        work.sort(key=_rank)
    return work


def _rank(work: tuple[int, Sequence, int]) -> int:
    return work[0]


def _is_any(sequence: Sequence) -> bool:
    return True


def _is_prefill(sequence: Sequence) -> bool:
    return sequence.batch is None


def limited(num_tokens: int, rules: BatchRules) -> int:
    """`num_tokens`, or the longest chunk that the rules allow."""
    if 0 < rules.chunk_limit_tokens < num_tokens:
        return rules.chunk_limit_tokens
    return num_tokens


def first_chunk(sequence: Sequence, num_computed: int, budget: int, rules: BatchRules) -> int:
    """Tokens of a new admission's first chunk; 0 where it may not start in this step.

    A text longer than a whole step's budget is split even if prompts are not: only a preempted request has one, and it
    could never come back otherwise.
    """
    num_new = limited(sequence.num_known - num_computed, rules)
    if num_new > budget and not rules.split_prompts and sequence.num_known <= rules.budget_tokens:
        return 0
    return min(num_new, budget)
