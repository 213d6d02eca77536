"""Blocks for the steps of a span, in which nothing else happens: where tables are ids, for many steps at once."""

from __future__ import annotations

from array import array
from typing import Final

from core.decision_log import EACH, NO_REQUEST, Event
from core.id_tables import IdTables
from core.progression import even_total_ps
from core.request import Sequence
from core.scheduler import Scheduler

_NOBODY: Final[dict[int, Sequence]] = {}
_NONE: Final[list[int]] = []
_ALLOC: Final = int(Event.ALLOC)  # asking the enumeration takes as long as a block does
_EVICT: Final = int(Event.EVICT)
_CACHE: Final = int(Event.CACHE)


class SpanBlocks:
    """Takes and publishes what the decoding members need, in order of steps, and of the running within each.

    Between two steps of a span nothing changes by itself; before its first, sequences may have ended. After each call
    the books are those of the last step's beginning, and the batch's clock is the next step's.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._tables = tables = scheduler.tables
        self._id_tables = tables if isinstance(tables, IdTables) else None
        self._pool = tables.pool
        self._batch = scheduler.running.batch
        self._log = scheduler.log
        self._recorder = scheduler.recorder
        # Of the span in flight: when it began, how long its first step takes, and each further one longer.
        self.now_ps = self.first_ps = self.growth_ps = 0

    def take(self, begin: int, end: int) -> None:
        """For the span's steps from `begin` up to, not including, `end`. There are enough."""
        next_clock = self._batch.clock + end - begin
        if self._id_tables is None:
            self._take_step_by_step(begin, end)
        else:
            self._take_together(self._id_tables, begin, end)
        self._log.have_grown()
        self._at_step(end - 1, next_clock - 1)
        self._batch.clock = next_clock

    def _at_step(self, step: int, clock: int) -> None:
        """The books are those of the moment at which this step of the span begins."""
        self._batch.clock = self._batch.num_emitted = clock
        self._scheduler.now_ps = self.now_ps + even_total_ps(self.first_ps, self.growth_ps, step)
        self._log.step = self._scheduler.step + step

    def _take_together(self, tables: IdTables, begin: int, end: int) -> None:
        """Nobody gives a block back meanwhile, so which ones come next does not depend on the step; unless it does on
        what is published until then: then such a pool is asked step by step.

        One long function on purpose: a call costs as much as what is to be done for a block.
        """
        batch, pool, recorder, log = self._batch, tables.ids, self._recorder, self._log
        size, buckets, members, publishes = tables.block_size, batch.buckets, batch.members, tables.prefix_caching
        draws_ahead = pool.draws_ahead
        num_taken = num_ready = 0
        drawn = array("q")
        if draws_ahead or not tables.publishes_known(members.values()):
            drawn, num_ready = pool.draw_ahead(batch.num_starts(end - begin))
        block_ids = drawn.tolist()
        entering: list[int] = []  # published, and not yet told to a pool for which it matters when
        heads, owners = log.heads, log.owners
        values: list[int] = []  # for the log, where more than the drawn blocks comes into it
        first_step, first_place = self._scheduler.step, recorder.num_steps_begun - begin
        internal, orphans = recorder.step_internal_tokens, recorder.step_orphan_blocks
        referenced = recorder.step_referenced_blocks
        # Of the steps with victims: their places, and the counts from there on.
        places: list[int] = []
        cached: list[int] = []
        evictions: list[int] = []
        # Who has the blocks whose eviction may cost something, in that order.
        attribution = pool.attribution
        takings: list[int] = []
        unowned, eviction, now_ps = _NONE, 0, 0
        if attribution is not None and (attribution.awaits_owner or not draws_ahead):
            unowned, eviction = attribution.unowned()
            unowned.reverse()
        are_few = len(members) * 4 < size  # in most steps nobody starts a block, or fills one: those are passed over
        filling = _NOBODY
        step, clock = begin, batch.clock
        while step < end:
            crossing = buckets[clock % size]
            if publishes:
                filling = buckets[(clock + 1) % size]
            if are_few and step and not crossing and not filling:
                if publishes:
                    num_quiet = batch.steps_to_next_edge(end - step, clock)
                else:
                    num_quiet = batch.steps_to_next_start(end - step, clock)
                step += num_quiet
                clock += num_quiet
                continue
            if crossing:
                num_new = len(crossing)
                num_missing = num_taken + num_new - len(block_ids)
                if num_missing > 0:
                    if entering:
                        pool.entered(array("q", entering))
                        entering.clear()
                    more, num_free = pool.draw_next(num_missing)
                    drawn += more
                    num_ready += num_free
                    block_ids += more.tolist()
                pool.num_referenced += num_new
                pool.num_available -= num_new
                if publishes:
                    num_victims = num_taken + num_new - num_ready
                    if num_victims > 0:
                        if num_victims > num_new:
                            num_victims = num_new
                        first_victim = num_taken + num_new - num_victims
                        heads += (first_step + step, _EVICT, NO_REQUEST, num_victims)
                        values += block_ids[first_victim : first_victim + num_victims]
                        if not draws_ahead:
                            pool.lose(drawn[first_victim : first_victim + num_victims])
                            if attribution is not None:
                                unowned = block_ids[first_victim : first_victim + num_victims]
                                unowned.reverse()
                        pool.num_cached -= num_victims
                        pool.num_evictions += num_victims
                        if step:
                            places.append(first_place + step)
                            cached.append(pool.num_cached)
                            evictions.append(pool.num_evictions)
                        if unowned:
                            now_ps = self.now_ps + even_total_ps(self.first_ps, self.growth_ps, step)
                    values += block_ids[num_taken : num_taken + num_new]
                heads += (first_step + step, _ALLOC, EACH, num_new)
                for sequence in crossing.values():
                    block_id, owner, table = block_ids[num_taken], sequence.request_id, sequence.tables[0]
                    table.append(block_id)
                    owners.append(owner)
                    num_taken += 1
                    if len(table) == sequence.num_peak_blocks:
                        tables.note_surplus(sequence)
                    if unowned and unowned[-1] == block_id:
                        unowned.pop()
                        takings += (eviction, first_step + step, now_ps, owner)
                        eviction += 1
                if step:
                    referenced.note(first_place + step, pool.num_referenced)
                    if tables.num_surplus_tokens != internal.last:
                        internal.note(first_place + step, tables.num_surplus_tokens)
            if filling:
                heads += (first_step + step, _CACHE, EACH, len(filling))
                num_before = len(values)
                for sequence in filling.values():
                    values.append(tables.publish_next(sequence))
                    owners.append(sequence.request_id)
                if not draws_ahead:
                    entering += values[num_before:]
            if not step:
                recorder.on_step(pool, tables.num_surplus_tokens)
            elif not draws_ahead and pool.num_orphans != orphans.last:
                orphans.note(first_place + step, pool.num_orphans)
            step += 1
            clock += 1
        if entering:
            pool.entered(array("q", entering))
        if publishes:
            log.values.fromlist(values)
        else:
            log.values += drawn
        if attribution is not None and takings:
            attribution.taken_in_turn(takings)
        recorder.step_cached_blocks.note_all(places, cached)
        recorder.step_evictions_before_end.note_all(places, evictions)
        recorder.num_steps_begun = first_place + end

    def _take_step_by_step(self, begin: int, end: int) -> None:
        batch, pool, tables, recorder = self._batch, self._pool, self._tables, self._recorder
        publishes, size, buckets = tables.prefix_caching, tables.block_size, batch.buckets
        steps_to_next = batch.steps_to_next_edge if publishes else batch.steps_to_next_start
        filling = _NOBODY
        step, clock = begin, batch.clock
        while step < end:
            crossing = buckets[clock % size]
            if step and not crossing:
                num_quiet = steps_to_next(end - step, clock)
                if num_quiet:
                    recorder.num_steps_begun += num_quiet
                    step += num_quiet
                    clock += num_quiet
                    continue
            if crossing:
                self._at_step(step, clock)
                tables.append_blocks(crossing.values())
            if publishes:
                filling = buckets[(clock + 1) % size]
            if filling:
                self._at_step(step, clock)
                tables.publish_filled(filling.values())
            if step == 0 or crossing or filling:
                recorder.on_step(pool, tables.num_surplus_tokens)
            else:
                recorder.num_steps_begun += 1
            step += 1
            clock += 1
