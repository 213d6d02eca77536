"""Shadow tags: a clean engine passes, and each fault planted in its data path is caught.

The faults are planted where K and V and their tags go alike: in the slots, tables and block copies that the executor
hands on.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_world import EngineSetup, assert_lockstep, run_trace
from world import Settings, trace_of

from core.decision_log import Event
from engine.executor import TorchExecutor
from engine.shadow import ShadowError
from traces.schema import Trace

SWAPPING = Settings(num_blocks=26, block_size=4, mode="swap", host_blocks=60, full_prompt=False)
RECOMPUTING = replace(SWAPPING, mode="recompute")


def crowded_trace() -> Trace:
    """Shared prefixes, parallel samples with unaligned prompts, and more text than the pool holds."""
    num = 12
    segments = [[(500, 12), (3000 + 97 * row, 1 + row)] for row in range(num)]
    return trace_of(
        [row * 0.003 for row in range(num)],
        [13 + row for row in range(num)],
        [10 + (row * 5) % 13 for row in range(num)],
        segments=segments,
        num_samples=[2 if row % 3 == 0 else 1 for row in range(num)],
    )


class WrongSlot(TorchExecutor):
    """Every token goes one slot too far."""

    def _send(self, rows, inputs, further):
        batch, sent = super()._send(rows, inputs, further)
        num_slots = self._kv.key.shape[1] * self._kv.block_size
        groups = [replace(group, slot_mapping=(group.slot_mapping + 1) % num_slots) for group in batch.groups]
        return replace(batch, groups=tuple(groups)), sent


class SkippedCopy(TorchExecutor):
    """Copy-on-write gives the sample a block of its own, but nothing is copied into it."""

    def _copy(self, copies, memory):
        pass


class StaleTable(TorchExecutor):
    """Each sequence goes on with the blocks that it first had, even after a preemption gave them away."""

    def _block_tables(self, sequence):
        if not hasattr(self, "_first"):
            self._first = {}
        (table,) = super()._block_tables(sequence)
        known = self._first.setdefault((sequence.request.request_id, sequence.index), list(table))
        return [known + table[len(known) :]]


class LostSwapBlock(TorchExecutor):
    """The last block of every swap-out never arrives on the host."""

    def _swap_out(self, copies, memory):
        if copies[:-1]:
            super()._swap_out(copies[:-1], memory)


class LostOnTheWayBack(TorchExecutor):
    """The last block of every swap-in never arrives on the device."""

    def _swap_in(self, copies, memory):
        if copies[:-1]:
            super()._swap_in(copies[:-1], memory)


class FreedEarly(TorchExecutor):
    """Once, a block counts as free although a sequence still reads it: the next owner of another block gets it."""

    def _block_tables(self, sequence):
        if not hasattr(self, "_victim"):
            self._victim, self._heir = None, None
        (table,) = super()._block_tables(sequence)
        if self._victim is None and sequence.num_outputs > 2:
            self._victim = (sequence.request.request_id, table[0])
        elif self._victim is not None and self._heir is None and sequence.request.request_id != self._victim[0]:
            self._heir = table[-1]
        return [[self._victim[1] if self._heir is block else block for block in table]]


FAULTS = [
    (WrongSlot, RECOMPUTING, "read"),
    (SkippedCopy, RECOMPUTING, "copy"),
    (StaleTable, RECOMPUTING, "read|hit"),
    (LostSwapBlock, SWAPPING, "swap_in"),
    (LostOnTheWayBack, SWAPPING, "swap_in"),
    (FreedEarly, RECOMPUTING, "read|hit"),
]


@pytest.mark.parametrize("settings", [RECOMPUTING, SWAPPING], ids=lambda settings: settings.mode)
def test_a_clean_engine_passes_and_every_kind_of_read_was_checked(settings):
    setup = EngineSetup(settings)
    run = run_trace(crowded_trace(), setup)
    kinds = {"read", "hit", "copy"} | ({"swap_in"} if settings.mode == "swap" else set())
    assert all(run.shadow.num_checked[kind] > 0 for kind in kinds), run.shadow.num_checked
    assert run.num_of(Event.PREEMPT) > 0
    assert run.num_of(Event.EVICT) > 0
    assert_lockstep(crowded_trace(), setup, run)


@pytest.mark.parametrize(("faulty", "settings", "origin"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_planted_fault_is_caught(faulty, settings, origin):
    with pytest.raises(ShadowError, match=rf"\(({origin})\): expected token") as caught:
        run_trace(crowded_trace(), EngineSetup(settings, executor=faulty))
    assert "step" in str(caught.value)
    assert "found" in str(caught.value)


def test_the_faults_change_nothing_that_lockstep_sees():
    """Without its shadow the faulty engine decides as the sound one does, and says other words."""

    class Unwatched(SkippedCopy):
        def __init__(self, decoder, kv, host_kv, tokens, sampling, shadow):
            super().__init__(decoder, kv, host_kv, tokens, sampling, None)

    setup = EngineSetup(RECOMPUTING, executor=Unwatched)
    faulty = run_trace(crowded_trace(), setup)
    assert_lockstep(crowded_trace(), setup, faulty)
    assert faulty.outputs() != run_trace(crowded_trace(), EngineSetup(RECOMPUTING)).outputs()


def test_the_message_names_the_place_and_both_texts():
    place = r"step 0, request 0, sample 0, position 0, block 0 \(read\)"
    with pytest.raises(
        ShadowError, match=rf"^{place}: expected token \d+ at position 0 of text [0-9a-f]{{16}}, found nothing$"
    ):
        run_trace(trace_of([0], [6], [3]), EngineSetup(RECOMPUTING, executor=WrongSlot))


def test_a_sample_swapped_out_in_the_step_of_its_copy_on_write():
    """The copy was planned but not made: what goes to the host is the block it was to be copied from."""
    setup = EngineSetup(replace(SWAPPING, num_blocks=14))
    num_met = 0
    for arrival_ms in range(50, 60):  # most of these arrivals, and none before, make copy and swap fall into one step
        trace = trace_of([0, arrival_ms / 1000], [14, 6], [40, 6], num_samples=[1, 3])
        run = run_trace(trace, setup)
        rows = run.scheduler.log.rows()
        steps = [set(rows[rows[:, 1] == event, 0].tolist()) for event in (Event.COPY, Event.SWAP_OUT)]
        if set.intersection(*steps):
            assert_lockstep(trace, setup, run)
            num_met += 1
        if num_met == 2:
            return
    pytest.fail("no arrival made a copy and a swap fall into one step")
