"""LCM pages (Jenga): blocks of each KV group's own size, carved from large pages that serve one group at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from shapes import hardware, model
from test_spans import assert_equal
from workloads import Workload, workloads
from world import Bench, KeepingRecorder, Run, Settings, check_integrity, scheduler_of, simulate

from core.block_tables import BlockTables
from core.content import PrivateKeys, TokenKeys
from core.errors import InputError
from core.kv_group import KVGroup, merged
from core.large_pages import Carving, LargePages
from core.lcm_tables import LcmTables
from core.plan import StepPlan
from core.request import Outcome, Request
from core.scheduler import Scheduler
from kvtwin.binding import bind_policy
from kvtwin.pool_layout import pool_layout
from kvtwin.sizing import SizingOptions, size
from policies.admission.full_reservation import FullReservation
from policies.allocation.lcm import LCM
from policies.allocation.paged import Paged
from policies.batching import Chunked, Orca, Static
from policies.eviction.radix import RadixLRU
from sim.simulation import run_simulation
from traces.replay import ReplayConfig, TraceSource

TARGET = "policies.allocation.lcm.LCM"
FULL, WINDOW = KVGroup(2), KVGroup(3, window_tokens=4)


def pages(num_pages: int, *groups: KVGroup, **others: Any) -> Settings:
    """A pool of so many large pages, blocks of one token."""
    groups = groups or (FULL, WINDOW)
    chosen = Settings(num_pages * Carving.of(groups).large, 1, budget=4, allocation=LCM)
    return replace(chosen, **{"groups": groups, "caching": False, "full_prompt": False, **others})


def ids(request: Request) -> list[list[int | None]]:
    return [[block and block.block_id for block in table] for table in request.live[0].tables]


# ---- carving --------------------------------------------------------------------------------------------------------


def test_gemma_3_27b_in_pages_of_260_layers() -> None:
    groups = merged(model("gemma3_27b").kv_groups())
    assert groups == (KVGroup(10), KVGroup(52, 1024))
    assert Carving.of(groups) == ((10, 52), 260, (26, 5))


def test_small_pages_lie_side_by_side_in_large_ones() -> None:
    """A page of 6 layers holds 3 blocks of the full layers or 2 of the windowed ones; an id is a layer's block."""
    bench = Bench(pages(8))
    request = bench.add(4, 9)
    bench.step()
    assert ids(request) == [[0, 2, 4, 6], [12, 15, 18, 21]]
    assert bench.pool.num_referenced == 4 * 2 + 4 * 3
    assert bench.pool.num_available == 4 * 6
    tables = bench.scheduler.tables
    assert tables.num_external_tokens(is_short=False) == 2 * 2, "two holes for blocks of two layers"
    bench.step()
    assert ids(request) == [[0, 2, 4, 6, 8], [None, 15, 18, 21, 12]], "what left the window makes room in its group"
    bench.drain()
    assert bench.pool.num_available == bench.pool.num_blocks == 48


def test_a_large_page_serves_one_group_until_it_is_free() -> None:
    books = LargePages(2, Carving((2, 3), 6, (3, 2)))
    full = [books.take(0, owner=1) for _ in range(3)]
    window = books.take(1, owner=1)
    assert (full, window) == ([0, 2, 4], 6)
    assert books.num_missing([1, 0]) == 1, "a hole of the windowed group is none of the full one's"
    assert books.num_missing([0, 1]) == 0
    books.free(window)
    assert books.num_missing([1, 1]) == 2
    assert books.take(0, owner=2) == 6, "free again, it serves the other group"


def test_who_opened_a_page_fills_it_first() -> None:
    books = LargePages(4, Carving((1, 4), 4, (4, 1)))
    for owner in (1, 2):
        assert books.take(0, owner) == owner - 1, "a hole of another's is taken before a free page"
    for _ in range(3):
        books.take(0, owner=3)  # the last hole but two, then a page of its own
    assert books.take(0, owner=3) == 5
    books.free(1)
    assert books.take(0, owner=3) == 6, "its own page, though there is a hole in an older one"
    assert [books.take(0, owner=2) for _ in range(2)] == [7, 1], "those that have had holes for the longest"


@settings(max_examples=50, deadline=None, derandomize=True)
@given(layers=st.lists(st.integers(1, 6), min_size=1, max_size=3), data=st.data())
def test_books_keep_what_they_promise(layers: list[int], data: st.DataObject) -> None:
    """Whatever is taken, kept, adopted, evicted and freed: nothing is lost or given twice, and needs are exact."""
    carving = Carving.of([KVGroup(number) for number in layers])
    books, held, kept = LargePages(6, carving), [[] for _ in layers], []  # type: ignore[var-annotated]
    for _ in range(data.draw(st.integers(1, 25))):
        wanted = [data.draw(st.integers(0, 4)) for _ in layers]
        adopted = data.draw(st.lists(st.sampled_from(kept), unique=True)) if kept else []
        by_group = [[place for place in adopted if books.group_of(place) == group] for group in range(len(layers))]
        num_ready, num_missing = books.num_free + books.num_idle, books.num_missing(wanted, by_group)
        if num_missing <= num_ready:
            for place in adopted:
                kept.remove(place)
                held[books.adopt(place)].append(place)
            num_carved, owner = books.num_carved(wanted), data.draw(st.integers(0, 3))
            while not books.has_room(wanted, num_carved):
                books.evict(kept.pop(data.draw(st.integers(0, len(kept) - 1))))
            for group, number in enumerate(wanted):
                held[group] += [books.take(group, owner) for _ in range(number)]
            assert books.num_free + books.num_idle <= num_ready - num_missing, "as many pages as were told, or more"
        for places, number in zip(held, wanted, strict=True):
            for _ in range(min(number, len(places)) // 2):
                place = places.pop(data.draw(st.integers(0, len(places) - 1)))
                if data.draw(st.booleans()):
                    books.keep(place)
                    kept.append(place)
                else:
                    books.free(place)
        books.check_integrity(held, kept)


# ---- what it buys ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("allocation", "num_running"),
    [(LCM, 130), (Paged, 115)],  # 130/26 + 130/5 = 31 pages of 260; 8,060 // 70, since 7 groups of 10 are padded
)
def test_gemma_3_27b_holds_as_many_as_its_bytes_are_worth(allocation: type, num_running: int) -> None:
    """31 large pages, or 806 blocks of 10 layers, and prompts of one block."""
    padded = model("gemma3_27b").kv_groups()
    bench = Bench(Settings(806, 16, caching=False, allocation=Paged, groups=padded))
    if allocation is LCM:
        bench = Bench(replace(pages(31, *merged(padded)), block_size=16, budget=8192, full_prompt=True))
    for _ in range(140):
        bench.add(16, 1)
    plan = bench.scheduler.schedule(0)
    assert plan is not None
    assert len(plan.admitted) == num_running


# ---- in a crowd -----------------------------------------------------------------------------------------------------


def test_who_finds_holes_of_the_other_group_waits() -> None:
    bench = Bench(pages(4, budget=8))
    first, second = bench.add(4, 1), bench.add(1, 1)
    plan = bench.step()
    assert plan is not None
    assert (plan.admitted, plan.blocked) == ([first], [second]), "two holes for full layers, none for windowed ones"
    bench.drain()
    assert second.num_preemptions == 0


def test_growth_preempts_until_large_pages_are_free() -> None:
    bench = Bench(pages(7))
    first, second = bench.add(2, 8), bench.add(2, 8)
    bench.steps(3)
    assert ids(first) == [[0, 2, 14, 30], [6, 9, 24, 36]]
    assert ids(second) == [[4, 12, 16, 32], [18, 21, 27, 39]], "holes in the other's pages are taken first"
    assert (bench.pool.num_available, bench.scheduler.tables.num_external_tokens(False)) == (0, 2)
    bench.step()
    assert ids(first) == [[0, 2, 14, 30, 34], [None, 9, 24, 36, 6]]
    assert second.num_preemptions == 1, "the hole was taken by the first, and windows let go of one block each"
    bench.drain()
    assert first.num_produced_tokens == second.num_produced_tokens == 8


def test_cached_blocks_stay_in_their_pages_until_those_are_needed() -> None:
    bench = Bench(pages(8, caching=True))
    bench.add(4, 1, TokenKeys(0, range(4), 1, 4))
    bench.drain()
    pool = bench.pool
    assert (pool.num_available, pool.num_cached) == (48, 4 * 2 + 4 * 3), "nobody holds a part of its four pages"
    again = bench.add(4, 2, TokenKeys(1, range(4), 1, 4))
    bench.step()
    assert ids(again) == [[0, 2, 4, 24], [12, 15, 18, 30]]
    assert again.num_cached_tokens == 3
    assert pool.num_available == 3 * 6, "three pages are held again, and two new ones; one is idle, two are free"
    bench.drain()
    assert (pool.num_evictions, pool.num_cached) == (0, 6 * 5), "its last block is there twice, its output's once"
    other = bench.add(12, 1, TokenKeys(2, range(50, 62), 1, 12))
    bench.step()
    assert ids(other) == [[24, 26, 28, 6], [36, 39, 42, 45]]
    assert pool.num_evictions == 5, "two pages were free; the oldest blocks went until two more were empty"
    bench.drain()


def test_full_reservation_counts_whole_pages() -> None:
    """Peaks of 8 tokens: 3 pages for full layers, and 4 for windowed ones, as long as a step may compute 4 tokens."""
    bench = Bench(pages(20, admission=FullReservation))
    for _ in range(3):
        bench.add(2, 7)
    view = bench.scheduler.view
    assert view.peak_blocks(bench.request(2, 7)) == (3 + 4) * 6
    bench.steps(4)
    assert bench.scheduler.running.num_sequences == 2
    bench.drain()


GROUPS = [
    (FULL, KVGroup(3, 5)),
    (KVGroup(1), KVGroup(4, 9)),
    (KVGroup(3, 9), KVGroup(2), KVGroup(1, 2)),
    (KVGroup(2, 3),),
]


@st.composite
def crowded(draw: st.DrawFn) -> Workload:
    """Any workload in a pool that is just enough for its largest request, or a page or two more."""
    workload, groups = draw(workloads()), draw(st.sampled_from(GROUPS))
    bounded = Chunked if workload.settings.batching in (Orca, Static) else workload.settings.batching
    chosen = replace(
        workload.settings,
        groups=groups,
        allocation=LCM,
        batching=bounded,
        leaf_first=False,
        free_order="unhashed_first",
        host_blocks=0,
    )
    view = scheduler_of(replace(chosen, num_blocks=None)).view
    lengths = zip(workload.trace.num_prompt_tokens.tolist(), workload.trace.num_output_tokens.tolist(), strict=True)
    num_alone = max(view.peak_blocks(Request(0, 0, *each, PrivateKeys(0))) for each in lengths)
    num_blocks = num_alone + draw(st.integers(0, 2)) * Carving.of(groups).large
    return replace(workload, settings=replace(chosen, num_blocks=num_blocks))


class Counting(KeepingRecorder):
    """Proves the books at every step, and counts the slots of each for itself, layer by layer."""

    scheduler: Scheduler
    counted: list[tuple[int, int, int]]

    def on_steps(self, plan: StepPlan, tables: BlockTables, num_steps: int) -> None:
        check_integrity(self.scheduler)
        self.counted.append(self._count(plan, tables))
        super().on_steps(plan, tables, num_steps)

    def _count(self, plan: StepPlan, tables: BlockTables) -> tuple[int, int, int]:
        size, large = tables.block_size, Carving.of(tables.groups).large
        num_slots = num_filled = num_internal = 0
        used_pages = set()
        live = [sequence for request in self.scheduler.running for sequence in request.live]
        seen = set()
        for sequence in [*live, *self.scheduler.kept]:
            num_kv = sequence.num_computed + (sequence.batch is not None and sequence.rank not in plan.held)
            for group, table in zip(tables.groups, sequence.tables, strict=True):
                num_beyond = max(0, len(table) * size - sequence.request.num_peak_tokens)
                num_internal += num_beyond * group.num_layers
                for index, block in enumerate(table):
                    if block is not None and block.block_id not in seen:
                        seen.add(block.block_id)
                        num_slots += size * group.num_layers
                        num_filled += min(max(num_kv - index * size, 0), size) * group.num_layers
                        used_pages.add(block.block_id // large)
        cached = [block.block_id for block in tables.pool._eviction.eviction_order()]
        beside = [tables.pool.pages.group_of(place) for place in cached if place // large in used_pages]
        num_cached = sum(tables.groups[group].num_layers for group in beside) * size
        num_external = len(used_pages) * large * size - num_slots - num_cached
        return num_slots - num_filled - num_internal, num_internal, num_external


def counted(workload: Workload, chosen: Settings) -> Run:
    scheduler = scheduler_of(chosen)
    recorder = Counting()
    recorder.scheduler, recorder.counted = scheduler, []
    recorder.block_size, recorder.num_kv_groups = scheduler.tables.block_size, scheduler.tables.num_groups
    scheduler.recorder = scheduler._emission._recorder = recorder
    config = ReplayConfig(chosen.block_size, workload.arrivals, workload.concurrency)
    run_simulation(TraceSource(workload.trace, config), scheduler, workload.cost)
    columns = map(recorder.per_step, ("num_reserved_tokens", "num_internal_tokens", "num_external_tokens"))
    assert list(zip(*columns, strict=True)) == recorder.counted
    return Run(scheduler, workload.trace.num_requests)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=crowded())
def test_any_crowd_gets_done(workload: Workload) -> None:
    """Cancellations, priorities, async steps: everybody's fate is told, nothing leaks, waste is as counted."""
    run = counted(workload, replace(workload.settings, spans=False))
    assert all(request.outcome is not Outcome.UNFINISHED for request in run.requests())
    assert run.scheduler.tables.pool.num_available == workload.settings.num_blocks
    spans, steps = (workload.run(replace(workload.settings, spans=on)) for on in (True, False))
    assert_equal(spans, steps)
    assert steps.scheduler.log.digest() == run.scheduler.log.digest()


def test_small_pages_are_not_kept_as_runs() -> None:
    assert isinstance(scheduler_of(pages(4, KVGroup(2), caching=True), by_ids=True).tables, LcmTables)


@settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(workload=crowded(), group=st.sampled_from([KVGroup(1), KVGroup(1, 5)]))
def test_with_one_group_it_is_paged(workload: Workload, group: KVGroup) -> None:
    """A large page is a block then: the same requests run at the same times."""
    assume(workload.trace.num_samples is None)  # samples would share paged blocks
    runs = [
        simulate(
            workload.trace,
            replace(workload.settings, groups=(group,), allocation=allocation),
            workload.cost,
            workload.arrivals,
            workload.concurrency,
        )
        for allocation in (LCM, Paged)
    ]
    fates = [[(r.outcome, r.first_token_ps, r.finish_ps, r.num_preemptions) for r in run.requests()] for run in runs]
    assert fates[0] == fates[1]


# ---- refusals and figures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"free_order": "append_all"}, "pool.free_order=append_all: under allocation LCM, expected unhashed_first"),
        ({"host_blocks": 1}, "pool.host_blocks=1: allocation LCM cannot swap; expected 0"),
        ({"prefix_index": "radix", "eviction": RadixLRU}, "pool.prefix_index=radix: allocation LCM has no form for it"),
        ({"num_blocks": 5}, "5 blocks of one layer, a large page of allocation LCM has 6"),
    ],
)
def test_what_it_cannot_do(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        scheduler_of(replace(pages(4), **change))


def test_what_can_never_run_ends_at_once() -> None:
    bench = Bench(pages(4, budget=2))
    assert bench.add(7, 1).reject_reason == "needs 36 blocks, the pool has 24"
    assert bench.add(2, 1, num_samples=2).reject_reason.startswith("wants 2 samples, whose blocks are not copied")


def test_the_same_number_of_blocks_is_the_same_memory() -> None:
    gemma, factory = model("gemma3_27b"), bind_policy(OmegaConf.create({"_target_": TARGET}), "allocation")
    assert pool_layout(gemma, factory, 806) == ((KVGroup(10), KVGroup(52, 1024)), 31 * 260, 1)
    assert pool_layout(gemma, factory, 831).num_blocks == 31 * 260, "what is no whole page is lost"
    assert pool_layout(gemma, factory, None).num_blocks is None
    with pytest.raises(InputError, match=r"pool.num_blocks=25: blocks of 10 layers.*has 260; expected at least 26"):
        pool_layout(gemma, factory, 25)


def test_sizing_shows_both() -> None:
    """Gemma 3 27B at 8,192 tokens: 512 blocks of 10 layers and 64 of 52 are 8,448, padded 8,960."""
    figures = size(model("gemma3_27b"), hardware("h100_80gb"), SizingOptions(context_tokens=8_192))
    assert figures["padding_ratio"] == 8 / 70
    assert figures["lcm_page_bytes"] == 260 * 16 * 8_192
    assert figures["lcm_small_page_bytes"] == [10 * 16 * 8_192, 52 * 16 * 8_192]
    num_pages = figures["pool_bytes"] // figures["lcm_page_bytes"]
    assert figures["lcm_concurrency_seqs"] == num_pages * 260 / 8_448
    most = figures["lcm_max_num_seqs"]
    fits = [-(-num_seqs * 512 // 26) - (-num_seqs * 64 // 5) <= num_pages for num_seqs in (most, most + 1)]
    assert fits == [True, False]
    assert figures["concurrency_windowed_seqs"] / figures["lcm_concurrency_seqs"] == pytest.approx(8_448 / 8_960, 1e-2)
