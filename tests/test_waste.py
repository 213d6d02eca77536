"""Slots that hold no token: reserved, internal and external, in each step as counted block by block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from workloads import Workload, workloads
from world import KeepingRecorder, Run, Settings, scheduler_of, simulate, trace_of

from core.block_tables import BlockTables
from core.kv_group import KVGroup
from core.metrics import Records, RequestColumns, compute_metrics
from core.plan import StepPlan
from core.scheduler import Scheduler
from policies.eviction.radix import RadixLRU
from sim.simulation import run_simulation
from traces.replay import ReplayConfig, TraceSource

NAMES = ("num_reserved_tokens", "num_internal_tokens", "num_external_tokens")


def waste_of(run: Run) -> list[tuple[int, ...]]:
    """(reserved, internal, external) slots of each step."""
    steps = run.step_arrays()
    return list(zip(*(steps[name].tolist() for name in NAMES), strict=True))


@pytest.mark.parametrize(("num_tokens", "num_wasted"), [(17, 15), (16, 0), (1, 15), (32, 0)])
def test_4_a_last_block_of_16_is_left_over_in_part(num_tokens: int, num_wasted: int) -> None:
    """17 tokens in two blocks: 15 of 32 slots, 46.9 %. The prompt's only output never has KV."""
    run = simulate(trace_of([0], [num_tokens], [1]), Settings(100))
    assert waste_of(run) == [(0, num_wasted, 0)]
    assert metrics_of(run)["waste_ratio"]["internal"] == num_wasted / (num_tokens + num_wasted)


def test_reserved_slots_are_filled_later_internal_ones_never() -> None:
    """Blocks of 4; 3 tokens and 4 outputs, so 6 with KV: the first block has one to come, the second two too many."""
    run = simulate(trace_of([0], [3], [4]), Settings(100, block_size=4))
    assert waste_of(run) == [(1, 0, 0), (0, 0, 0), (1, 2, 0), (0, 2, 0)]


@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_a_paged_sequence_wastes_half_a_block_on_average(block_size: int) -> None:
    """(B - 1) / 2 slots over all lengths: while one token after the other comes, and as the last block's at the end."""
    long = simulate(trace_of([0], [1], [4 * block_size]), Settings(100, block_size=block_size))
    assert np.mean([sum(parts) for parts in waste_of(long)]) == (block_size - 1) / 2
    lengths = range(1, block_size + 1)
    ends = [waste_of(simulate(trace_of([0], [n], [1]), Settings(9, block_size=block_size)))[-1] for n in lengths]
    assert np.mean(ends, axis=0).tolist() == [0, (block_size - 1) / 2, 0]


def test_a_shared_prompt_is_full_once_however_many_read_it() -> None:
    """Four samples of 6 tokens, blocks of 4, 3 outputs each: a full block for all, and a tail each, once copied."""
    run = simulate(trace_of([0], [6], [3], num_samples=[4]), Settings(100, block_size=4))
    assert run.step_arrays()["num_referenced_blocks"].tolist() == [2, 5, 5]
    assert waste_of(run) == [(2, 0, 0), (4, 0, 0), (0, 0, 0)], "the tail's two slots, then one of each of the four"


def metrics_of(run: Run) -> dict:
    scheduler = run.scheduler
    return compute_metrics(
        Records(
            RequestColumns.of(run.request_arrays()),
            [run.step_totals()],
            [],
            scheduler.tables.pool.num_blocks,
            scheduler.tables.block_size,
            False,
        )
    )


# ---- against a count, block by block --------------------------------------------------------------------------------


class Counting(KeepingRecorder):
    """A recorder that counts the slots of each step for itself."""

    scheduler: Scheduler
    counted: list[tuple[int, int]]

    def on_steps(self, plan: StepPlan, tables: BlockTables, num_steps: int) -> None:
        self.counted.append(self._count(plan, tables))
        super().on_steps(plan, tables, num_steps)

    def _count(self, plan: StepPlan, tables: BlockTables) -> tuple[int, int]:
        filled: dict[int, int] = {}
        size, num_internal = tables.block_size, 0
        live = [sequence for request in self.scheduler.running for sequence in request.live]
        for sequence in [*live, *self.scheduler.kept]:
            request = sequence.request
            num_kv = sequence.num_computed + (sequence.batch is not None and sequence.rank not in plan.held)
            for table in sequence.tables:
                num_internal += max(0, len(table) * size - request.num_prompt_tokens - request.num_output_tokens + 1)
                for index, block in enumerate(table):
                    num_here = min(max(num_kv - index * size, 0), size)
                    if block is not None:
                        filled[block.block_id] = max(num_here, filled.get(block.block_id, 0))
        return len(filled) * size - sum(filled.values()) - num_internal, num_internal


def assert_as_counted(workload: Workload, chosen: Settings) -> None:
    """Single steps: that spans have the same columns is for test_spans."""
    scheduler = scheduler_of(replace(chosen, spans=False))
    recorder = Counting()
    recorder.scheduler, recorder.counted = scheduler, []
    recorder.block_size, recorder.num_kv_groups = scheduler.tables.block_size, scheduler.tables.num_groups
    scheduler.recorder = scheduler._emission._recorder = recorder
    config = ReplayConfig(chosen.block_size, workload.arrivals, workload.concurrency)
    run_simulation(TraceSource(workload.trace, config), scheduler, workload.cost)
    columns = (recorder.per_step("num_reserved_tokens"), recorder.per_step("num_internal_tokens"))
    assert list(zip(*columns, strict=True)) == recorder.counted
    assert scheduler.tables.num_surplus_tokens == 0, "nothing is left over of those who are gone"


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads())
def test_every_step_of_a_random_run(workload: Workload) -> None:
    assert_as_counted(workload, workload.settings)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=workloads())
def test_every_step_with_windows_and_with_a_tree(workload: Workload) -> None:
    """What leaves a window is no slot any more; what a tree keeps once is full once."""
    plain = replace(
        workload.settings,
        leaf_first=False,
        host_blocks=0,
        free_order="unhashed_first",
        asynchronous=False,
        mode="recompute",
        preemption=None,  # it may swap, which a tree refuses
    )
    windowed = replace(plain, num_blocks=3 * (plain.num_blocks or 1), groups=(KVGroup(1), KVGroup(1, 5), KVGroup(1, 9)))
    assert_as_counted(workload, windowed)
    assert_as_counted(workload, replace(plain, prefix_index="radix", eviction=RadixLRU, publication="schedule"))
