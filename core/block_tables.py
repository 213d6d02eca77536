"""The memory side of a sequence: prefix look-up, growth, copy-on-write and release of its block tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from core.block_pool import BlockPool
from core.decision_log import DecisionLog, Event
from core.interfaces import AllocationPolicy, Block, BlockKey, EvictionPolicy
from core.kv_group import KVGroup, group_key
from core.plan import BlockCopy, StepPlan
from core.pool import Pool
from core.prefix_hit import NO_HIT, PrefixHit
from core.request import BlockTable, Request, Sequence
from core.running import RunningRequests
from core.swap import HostPool
from core.swapping import Swapping


class BlockTables:
    """Block tables over one pool. A failed question changes nothing; only the verbs that say so change state."""

    is_contiguous = False
    serves_searches = True

    def __init__(
        self,
        pool: BlockPool,
        eviction: EvictionPolicy,
        allocation: AllocationPolicy,
        groups: tuple[KVGroup, ...],
        block_size: int,
        log: DecisionLog,
        host: HostPool,
        prefix_caching: bool = True,
        max_batch_tokens: int = 1 << 62,
    ) -> None:
        self.pool: Pool = pool
        self.blocks = pool  # the same, as its objects
        self.swapping = Swapping(pool, host, groups, block_size, log, prefix_caching)
        self.groups, self.num_groups = groups, len(groups)
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.ignores_repeated_look_ups = True  # asking again what a waiting request would find changes no decision
        self.is_windowed = any(group.window_tokens is not None for group in groups)
        self.eviction_is_prefix_closed = eviction.is_prefix_closed
        self.is_on_demand = allocation.is_on_demand
        self.num_surplus_tokens = 0  # slots beyond the last tokens that their sequences will have KV for
        self.allocation = allocation
        self._log = log
        self._max_batch_tokens = max_batch_tokens

    def empty(self) -> list[BlockTable]:
        """The tables of a sequence that holds nothing."""
        return [[] for _ in self.groups]

    # ---- prefix look-up -------------------------------------------------------------------------------------------

    def look_up(self, sequence: Sequence) -> PrefixHit:
        """What a request that may be admitted now would adopt."""
        return self.find_prefix(sequence)

    def find_prefix(self, sequence: Sequence) -> PrefixHit:
        """The longest cached prefix of its known tokens, at least one token short of all. Changes nothing."""
        num_full = (sequence.num_known - 1) // self.block_size
        if len(self.groups) == 1 and not self.is_windowed:
            blocks = self.blocks.index.leading(sequence.keys.keys(0, num_full))
            if not blocks:
                return NO_HIT
            num_idle = len([None for block in blocks if not block.ref_count])
            return PrefixHit(len(blocks) * self.block_size, [[*blocks]], num_idle)
        return self._find_grouped_prefix(sequence, num_full)

    def num_cached_tokens(self, request: Request) -> int:
        """What a request that has not come in would find here."""
        return self.find_prefix(Sequence(request, 0, request.keys, [], request.num_prompt_tokens)).num_tokens

    def has_beginning(self, request: Request) -> bool:
        """Whether the first block of its prompt is cached, where it is full. Of one KV group. O(1)."""
        return self.blocks.index.get(request.keys.key(0)) is not None

    def _find_grouped_prefix(self, sequence: Sequence, num_full: int) -> PrefixHit:
        """The minimum over groups, each by its own rule, repeated until every group agrees."""
        found = [
            [self.blocks.index.get(group_key(group, sequence.keys.key(i))) for i in range(num_full)]
            for group in range(len(self.groups))
        ]
        num_hits, agreed = num_full, False
        while not agreed:
            agreed = True
            for group, blocks in zip(self.groups, found, strict=True):
                fewer = group.num_hit_blocks([block is not None for block in blocks[:num_hits]], self.block_size)
                agreed, num_hits = agreed and fewer == num_hits, fewer
        num_tokens = num_hits * self.block_size
        tables: list[list[Block | None]] = []
        for group, blocks in zip(self.groups, found, strict=True):
            num_expired = group.num_expired_blocks(num_tokens, self.block_size)
            expired: list[Block | None] = [None] * min(num_expired, num_hits)
            tables.append(expired + blocks[num_expired:num_hits])
        idle = {b.block_id for table in tables for b in table if b is not None and b.ref_count == 0}
        return PrefixHit(num_tokens, tables, len(idle))

    def adopt(self, sequence: Sequence, hit: PrefixHit, readmission: bool) -> None:
        """Makes the hit the beginning of the sequence's (empty) tables."""
        request_id = sequence.request.request_id
        for table, hits in zip(sequence.tables, hit.tables, strict=True):
            blocks = [block for block in hits if block is not None]
            if blocks:
                self.blocks.adopt(blocks, request_id, readmission)
            table[:] = hits
        sequence.stored_computed = hit.num_tokens
        sequence.num_registered = hit.num_tokens // self.block_size

    # ---- growth ---------------------------------------------------------------------------------------------------

    def num_needed(self, sequence: Sequence, num_new: int, num_computed: int, num_held_blocks: int) -> int:
        """Blocks to take so that `num_new` tokens after `num_computed` have room, given what each table holds."""
        target = self.allocation.target_blocks(sequence.request, num_computed + num_new)
        return max(target - num_held_blocks, 0) * len(self.groups) + self._num_shared_tails(sequence, num_computed)

    def num_needed_by_decodes(self, sequences: Collection[Sequence]) -> int:
        """Blocks to take for the next token of each of them, which starts a block."""
        if self.is_on_demand:
            return len(sequences) * len(self.groups)
        return sum(self.num_needed(s, 1, s.num_computed, len(s.tables[0])) for s in sequences if self.is_full(s))

    def is_full(self, sequence: Sequence, num_tokens_ahead: int = 0) -> bool:
        """Do its blocks hold no more than the tokens that have KV, and so many more?"""
        return sequence.num_computed + num_tokens_ahead >= len(sequence.tables[0]) * self.block_size

    def can_take(self, num_blocks: int) -> bool:
        """Can one sequence have so many blocks now?"""
        return num_blocks <= self.pool.num_available

    def num_needed_for_all(self, sequence: Sequence, num_held_blocks: int) -> int:
        """Blocks to take for all known tokens.

        A window group never holds more than `most_window_blocks`, of which it has what is held (vLLM's count).
        """
        target = self.allocation.target_blocks(sequence.request, sequence.num_known)
        total = 0
        for group in self.groups:
            most = target
            if group.window_tokens is not None:
                most = min(target, self.most_window_blocks(group.window_tokens))
            total += max(most - num_held_blocks, 0)
        return total

    def num_alone(self, num_blocks: Iterable[int]) -> int:
        """What so many blocks of each group take of an empty pool."""
        return sum(num_blocks)

    def most_window_blocks(self, window_tokens: int) -> int:
        """Blocks that a sequence holds at most in a group with this window: the window, and one step's tokens."""
        return -(-(window_tokens - 1 + self._max_batch_tokens) // self.block_size) + 1

    def grow(self, sequence: Sequence, num_new: int, plan: StepPlan) -> None:
        """Takes the blocks for the next `num_new` tokens, copying a shared tail first. There must be room."""
        num_computed = sequence.num_computed
        if self._num_shared_tails(sequence, num_computed):
            self._copy_on_write(sequence, num_computed // self.block_size, plan)
        self.extend(sequence, num_new)

    def extend(self, sequence: Sequence, num_new: int) -> None:
        request = sequence.request
        target = self.allocation.target_blocks(request, sequence.num_computed + num_new)
        for group, table in enumerate(sequence.tables):
            num_blocks = target - len(table)
            if num_blocks > 0:
                incoming = self._incoming(sequence, group, num_blocks) if num_blocks > self.pool.num_free else ()
                table.extend(self.blocks.take(num_blocks, request.request_id, incoming))
        self.note_surplus(sequence)

    def append_blocks(self, sequences: Collection[Sequence]) -> None:
        """Takes the blocks that their next tokens need, which start new ones."""
        if not self.is_on_demand:
            sequences = [sequence for sequence in sequences if self.is_full(sequence)]
            for sequence in sequences:
                self.extend(sequence, 1)
            return
        owners = [sequence.request.request_id for sequence in sequences]
        if len(self.groups) > 1:
            owners = [owner for owner in owners for _ in self.groups]
        blocks = iter(self.blocks.take_for(owners))
        for sequence in sequences:
            for table in sequence.tables:
                table.append(next(blocks))
            if len(table) * self.block_size > sequence.request.num_peak_tokens:
                self.note_surplus(sequence)

    def note_surplus(self, sequence: Sequence) -> None:
        """Its tables have grown, or are gone."""
        num_slots = len(sequence.tables[0]) * self.block_size
        request = sequence.request
        num_surplus = (num_slots - request.num_prompt_tokens - request.num_output_tokens + 1) * self.num_groups
        if num_surplus < 0:
            num_surplus = 0
        self.num_surplus_tokens += num_surplus - sequence.num_surplus_tokens
        sequence.num_surplus_tokens = num_surplus

    def _incoming(self, sequence: Sequence, group: int, num_blocks: int) -> list[BlockKey | None]:
        """Keys of the content that will fill its next blocks; None where the text is not known yet."""
        first = len(sequence.tables[group])
        num_known = sequence.num_known // self.block_size if self.prefix_caching else 0
        keys = sequence.keys.keys(first, max(first, min(first + num_blocks, num_known)))
        if group:
            keys = [group_key(group, key) for key in keys]
        return [*keys, *[None] * (num_blocks - len(keys))]

    def _num_shared_tails(self, sequence: Sequence, num_computed: int) -> int:
        """Tables whose next token would be written into a block that another sample still reads."""
        index = num_computed // self.block_size
        return sum(index < len(table) and table[index].ref_count > 1 for table in sequence.tables)

    def _copy_on_write(self, sequence: Sequence, index: int, plan: StepPlan) -> None:
        request_id = sequence.request.request_id
        for table in sequence.tables:
            shared = table[index]
            own = self.blocks.take(1, request_id)[0]
            plan.copies.append(BlockCopy(shared.block_id, own.block_id))
            self._log.blocks(Event.COPY, request_id, (own,))
            self.blocks.release((shared,), request_id)
            table[index] = own

    def publish(self, sequence: Sequence, num_tokens: int) -> None:
        """Registers the full blocks among the first `num_tokens` tokens that are not yet in the prefix index."""
        first, last = sequence.num_registered, num_tokens // self.block_size
        if last <= first:
            return
        request = sequence.request
        if request.is_beam_search:
            last = request.num_public(num_tokens) // self.block_size
            if last <= first:
                return
        keys = sequence.keys.keys(first, last)
        is_linked = self.blocks.index.is_linked
        before = sequence.keys.key(first - 1) if is_linked and first else None
        for group, table in enumerate(sequence.tables):
            group_keys = [group_key(group, key) for key in keys] if group else keys
            parents = [None if before is None else group_key(group, before), *group_keys[:-1]] if is_linked else []
            self.blocks.register(
                table[first:last],
                group_keys,
                request.request_id,
                range(first, last),
                category=request.category,
                parents=parents,
            )
        sequence.num_registered = last

    def publish_filled(self, sequences: Collection[Sequence]) -> None:
        """As `publish`, of sequences each of which fills a block with its next token."""
        size = self.block_size
        places = [sequence.num_computed // size for sequence in sequences]
        is_plain = self.num_groups == 1 and not self.blocks.index.is_linked and not self.is_windowed
        if not is_plain or any(
            sequence.num_registered != place or sequence.request.is_beam_search
            for sequence, place in zip(sequences, places, strict=True)
        ):
            for sequence in sequences:
                self.publish(sequence, sequence.num_computed + 1)
            return
        blocks, keys, owners = [], [], []
        for sequence, place in zip(sequences, places, strict=True):
            block, request = sequence.tables[0][place], sequence.request
            block.position, block.category = place, request.category
            blocks.append(block)
            keys.append(sequence.keys.key(place))
            owners.append(request.request_id)
            sequence.num_registered = place + 1
        self.blocks.register_for(blocks, keys, owners)

    def undo_step(self, request: Request, plan: StepPlan, keep_registrations: bool) -> None:
        """Takes back what the step being planned did for a request that has just been preempted.

        That is, registrations of blocks whose KV will not be computed (vLLM 0.33 keeps those), and copies-on-write: its
        samples share the tails again. Its new blocks go with its tables.
        """
        for sequence in request.live:
            if self.prefix_caching and not keep_registrations:
                self._unpublish(sequence)
            if plan.copies:
                self._undo_copies(sequence, plan)

    def _unpublish(self, sequence: Sequence) -> None:
        for table in sequence.tables:
            for block in table[sequence.stored_computed // self.block_size : sequence.num_registered]:
                if block.key is not None and block.ref_count == 1:
                    self.blocks.unregister(block)

    def _undo_copies(self, sequence: Sequence, plan: StepPlan) -> None:
        index = sequence.stored_computed // self.block_size
        copies = {copy.target_id: copy for copy in plan.copies}
        for table in sequence.tables:
            copy = copies.get(table[index].block_id) if index < len(table) else None
            if copy is not None:
                own, table[index] = table[index], self.blocks.block(copy.source_id)
                self.blocks.share((table[index],))  # it has a reference left: the last sample to write does not copy
                self.blocks.release((own,), sequence.request.request_id)
                plan.copies.remove(copy)

    # ---- what the blocks hold -------------------------------------------------------------------------------------

    def num_filled_tokens(self, running: RunningRequests, num_decodes: int) -> int:
        """Slots of referenced blocks that hold a token, once `num_decodes` members of the batch have their next one.

        O(prefills); O(running) while any request has several samples, which may share tails, and with sliding windows.
        """
        others = [*running.prefills.values(), *running.retired]
        has_samples = running.num_sequences > len(running) or any(s.request.num_samples > 1 for s in running.retired)
        if has_samples or self.is_windowed:
            return self._num_filled_by_block([*running.batch.members.values(), *others]) + num_decodes * self.num_groups
        num_tokens = running.batch.context_tokens + num_decodes + sum(sequence.stored_computed for sequence in others)
        return num_tokens * self.num_groups - self.pool.num_shared * self.block_size

    def _num_filled_by_block(self, sequences: Iterable[Sequence]) -> int:
        """All slots, less the empty ones of each block that is not full, whoever has it."""
        empty: dict[Block, int] = {}
        for sequence in sequences:
            first, num_in_tail = divmod(sequence.num_computed, self.block_size)
            for table in sequence.tables:
                for index, block in enumerate(table[first:]):
                    num_empty = self.block_size - (0 if index else num_in_tail)
                    empty[block] = min(num_empty, empty.get(block, num_empty))
        return self.pool.num_referenced * self.block_size - sum(empty.values())

    def num_external_tokens(self, is_short: bool) -> int:
        """Slots outside of all tables that serve nobody: there are none where any block serves anybody.

        `is_short`: somebody was refused memory in this step.
        """
        return 0

    # ---- shrinking ------------------------------------------------------------------------------------------------

    def suspend(self, sequence: Sequence) -> None:
        """As `release`, of a sequence that comes back."""
        self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Gives up all its blocks, leaf to root, group after group."""
        for table in sequence.tables:
            blocks = table[::-1]
            if self.is_windowed:
                blocks = [block for block in blocks if block is not None]
            self.blocks.release(blocks, sequence.request.request_id)
            table.clear()
        sequence.num_registered = 0
        if sequence.num_surplus_tokens:
            self.num_surplus_tokens -= sequence.num_surplus_tokens
            sequence.num_surplus_tokens = 0

    def drop_expired(self, sequence: Sequence, num_settled: int, plan: StepPlan) -> None:
        """Frees the blocks that left each group's window after `num_settled` tokens; their place stays, as None."""
        for group, table in zip(self.groups, sequence.tables, strict=True):
            num_expired = min(group.num_expired_blocks(num_settled, self.block_size), len(table))
            expired = []
            for index in range(num_expired - 1, -1, -1):
                if table[index] is None:
                    break
                expired.append(table[index])
                table[index] = None
            self.blocks.release(expired, sequence.request.request_id)
            plan.window_frees.extend(block.block_id for block in expired)

    def fork(self, lead: Sequence, sibling: Sequence, num_blocks: int) -> None:
        """`sibling` shares the first `num_blocks` blocks of each of `lead`'s tables."""
        for source, target in zip(lead.tables, sibling.tables, strict=True):
            target[:] = source[:num_blocks]
            self.blocks.share([block for block in target if block is not None])
        sibling.num_registered = min(lead.num_registered, num_blocks)
        self.note_surplus(sibling)

    def go_on_from(self, parents: Mapping[Sequence, Sequence]) -> None:
        """Each key's tables become those of its value, which has as many tokens and is no key.

        Costs the blocks from the first on in which they differ.
        """
        for sequence, parent in parents.items():
            request_id = sequence.request.request_id
            for table, source in zip(sequence.tables, parent.tables, strict=True):
                places = (i for i, block in enumerate(table) if block is not source[i])
                first = next(places, len(table))
                dropped, table[first:] = table[first:], source[first:]
                self.blocks.share([block for block in source[first:] if block is not None])
                self.blocks.release([block for block in reversed(dropped) if block is not None], request_id)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Proves the pool's books against the tables of all `sequences` that have any. O(pool): for tests."""
        self.blocks.check_integrity([b for b in table if b is not None] for s in sequences for table in s.tables)
