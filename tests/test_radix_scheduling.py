"""The scheduler on the radix tree: SGLang's life cycle of a request's KV, exact values, and the engine in lockstep."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler_states import cases, drive_at_random
from test_spans import assert_equal, assert_sound, both, run_of
from workloads import Workload, workloads
from world import Bench, Settings, scheduler_of, simulate, trace_of

from core.build import PolicyFactories, PoolConfig, build_scheduler
from core.content import TokenKeys
from core.decision_log import DecisionLog, Event
from core.errors import InputError
from core.interfaces import Leaf, LeafRanking
from core.kv_group import KVGroup
from core.radix_tables import RadixTables
from core.recorder import Recorder
from core.scheduler import SchedulerConfig
from core.units import PS_PER_S
from kvtwin.parity.radix import RANKINGS
from policies.admission.reservation import Reservation
from policies.allocation.paged import Paged
from policies.batching import Chunked
from policies.eviction.lru import LRU
from policies.eviction.radix import RadixLRU
from policies.preemption.last_arrived import LastArrived
from policies.preemption.strict_priority import StrictPriority
from policies.queueing.fcfs import FCFS
from traces.reading import read_trace
from traces.replay import Arrivals
from traces.samples import sample_path
from traces.transforms import limit

BLOCKS = (Event.TOUCH, Event.ALLOC, Event.EVICT, Event.CACHE, Event.FREE)


def radix(num_blocks: int | None, **options: Any) -> Settings:
    return Settings(num_blocks, **{"block_size": 4, "prefix_index": "radix", "eviction": RadixLRU, **options})


def keys(text: str, num_prompt: int) -> TokenKeys:
    """A letter a token; requests share what their texts share."""
    return TokenKeys(hash(text) & 0xFFFF, map(ord, text), 4, num_prompt)


def ask(bench: Bench, text: str, num_output: int, **fields: int) -> Any:
    return bench.add(len(text), num_output, keys(text, len(text)), **fields)


def tree_of(bench: Bench) -> list[tuple[int, int]]:
    """Blocks and locks of every node but the root, parents first."""
    tables = bench.scheduler.tables
    assert isinstance(tables, RadixTables)
    return [(node.num_pages, node.num_locks) for node in tables.tree.nodes()][1:]


def since(bench: Bench, step: int) -> list[tuple[str, int, int]]:
    return [(event, who, block) for at, event, who, block in bench.decisions(*BLOCKS) if at >= step]


# ---- the life cycle of a request ------------------------------------------------------------------------------------


def test_content_is_published_when_it_has_been_computed_not_when_it_is_scheduled() -> None:
    bench = Bench(radix(20))
    request = ask(bench, "aaaabbbbcc", 4)
    with bench.in_step():
        assert tree_of(bench) == []
    assert tree_of(bench) == [(2, 1)], "two full blocks, locked by the request"
    bench.steps(3)
    assert request.num_produced_tokens == 4
    assert tree_of(bench) == [(2, 0), (1, 0)], "at its end the block that its output filled, too"
    assert (bench.pool.num_cached, bench.pool.num_referenced) == (3, 0)


def test_prompts_of_one_step_do_not_hit_each_other_and_are_kept_once() -> None:
    """Both compute `aaaabbbb`. The first publishes its blocks; the second adopts them and frees its own."""
    bench = Bench(radix(20))
    first, second = ask(bench, "aaaabbbbcc", 9), ask(bench, "aaaabbbbdd", 9)
    with bench.in_step() as plan:
        assert plan is not None
        assert plan.hit_tokens == {0: 0, 1: 0}
        assert [block.block_id for block in second.live[0].tables[0]] == [3, 4, 5]
    assert since(bench, 0) == [
        *[("ALLOC", 0, block) for block in (0, 1, 2)],
        *[("ALLOC", 1, block) for block in (3, 4, 5)],
        *[("CACHE", 0, block) for block in (0, 1)],
        *[("TOUCH", 1, block) for block in (0, 1)],
        *[("FREE", 1, block) for block in (4, 3)],
    ]
    assert [block.block_id for block in first.live[0].tables[0]] == [0, 1, 2]
    assert [block.block_id for block in second.live[0].tables[0]] == [0, 1, 5]
    assert tree_of(bench) == [(2, 2)]


def test_the_hash_index_lets_them_hit() -> None:
    bench = Bench(Settings(20, block_size=4))
    ask(bench, "aaaabbbbcc", 9)
    ask(bench, "aaaabbbbdd", 9)
    plan = bench.step()
    assert plan is not None
    assert plan.hit_tokens == {0: 0, 1: 8}


def test_a_hit_ends_where_texts_part_and_locks_that_far() -> None:
    bench = Bench(radix(20))
    ask(bench, "aaaabbbbccccd", 1)
    bench.step()
    assert tree_of(bench) == [(3, 0)]
    ask(bench, "aaaabbbbxxxxy", 9)
    with bench.in_step() as plan:
        assert plan is not None
        assert plan.hit_tokens == {1: 8}
        assert tree_of(bench) == [(2, 1), (1, 0)]
    assert tree_of(bench) == [(2, 1), (1, 0), (1, 1)]


def test_a_prompt_that_is_wholly_cached_leaves_a_token_to_compute() -> None:
    bench = Bench(radix(20))
    for _ in range(2):
        request = ask(bench, "aaaabbbb", 1)
        bench.step()
    assert request.num_cached_tokens == 4
    assert tree_of(bench) == [(1, 0), (1, 0)], "the second block was computed again, and freed as a duplicate"
    assert (bench.pool.num_cached, bench.pool.num_free) == (2, 18)


def test_chunks_are_published_one_by_one() -> None:
    bench = Bench(radix(20, budget=8))
    ask(bench, "aaaabbbbccccddddee", 2)
    published = []
    for _ in range(3):
        bench.step()
        published.append(tree_of(bench))
    assert published == [[(2, 1)], [(2, 1), (2, 1)], [(2, 1), (2, 1)]]


def test_a_request_counts_once_in_every_node() -> None:
    """Four publications (three chunks, the end), one hit each; a second request makes it two where they share."""
    bench = Bench(radix(20, budget=8))
    ask(bench, "aaaabbbbccccddddee", 2)
    bench.steps(4)
    ask(bench, "aaaabbbbq", 1)
    bench.step()
    tables = bench.scheduler.tables
    assert isinstance(tables, RadixTables)
    assert [node.num_hits for node in tables.tree.nodes()][1:] == [2, 1]


def test_the_more_urgent_request_leaves_the_more_important_node() -> None:
    bench = Bench(radix(3, eviction=RANKINGS["priority"]))
    for text, priority in (("aaaab", 1), ("ccccd", -1)):
        ask(bench, text, 1, priority=priority)
        bench.step()
    ask(bench, "eeeeffff", 1)
    with bench.in_step():
        assert [row[2] for row in since(bench, 2) if row[0] == "EVICT"] == [0], "of the request with priority 1"


# ---- eviction -------------------------------------------------------------------------------------------------------


def test_a_whole_leaf_goes_and_what_was_not_needed_is_free() -> None:
    bench = Bench(radix(5))
    ask(bench, "aaaabbbbccccddddx", 1)
    bench.step()
    assert (bench.pool.num_cached, bench.pool.num_free) == (4, 1)
    ask(bench, "eeeeff", 1)
    with bench.in_step():
        assert since(bench, 1) == [
            *[("EVICT", -1, block) for block in (3, 2, 1, 0)],
            *[("ALLOC", 1, block) for block in (4, 3)],
        ]
        assert (bench.pool.num_cached, bench.pool.num_free) == (0, 3)
        assert bench.pool.num_evictions == 4
        assert bench.pool.free_queue() == [2, 1, 0]


@pytest.mark.parametrize(("chosen", "victim"), [(radix(5), 1), (Settings(5, block_size=4), 0)])
def test_a_look_up_protects_what_it_found(chosen: Settings, victim: int) -> None:
    """Block 0 is older than block 1, but a request that waits has been looking it up. The hash index takes it."""
    bench = Bench(chosen)
    for text in ("aaaa1", "cccc1"):
        ask(bench, text, 1)
        bench.step()
    ask(bench, "bbbbdddd", 9)  # its fourth block, in its sixth step, is one too many
    bench.step()
    ask(bench, "aaaaeeeeffffgggg", 1)
    bench.steps(4)
    assert (len(bench.scheduler.waiting), bench.decisions(Event.EVICT)) == (1, [])
    bench.step()
    assert [block for _, _, _, block in bench.decisions(Event.EVICT)] == [victim]


def test_preemption_drops_what_was_not_published_before() -> None:
    """As in SGLang: the prompt stays in the tree, what the victim had said is computed again."""
    bench = Bench(radix(6, full_prompt=False))
    first, second = ask(bench, "aaaabbbb", 9), ask(bench, "ccccdddd", 9)
    bench.steps(9)
    assert (first.num_preemptions, second.num_preemptions) == (0, 1)
    bench.drain()
    assert second.num_readmission_cached_tokens == 8
    assert second.num_recomputed_tokens == 4


def test_cancelled_requests_leave_what_they_computed() -> None:
    bench = Bench(radix(20))
    request = ask(bench, "aaaabbbbcc", 9)
    with bench.in_step():
        bench.cancel(request)
        assert tree_of(bench) == [(2, 0)], "the step is carried out all the same"
    assert bench.pool.num_cached == 2


def test_a_sample_that_sat_the_step_out_publishes_no_token_of_it() -> None:
    """Budget for three of four samples, whose first output fills a block: the fourth has not computed its own."""
    bench = Bench(radix(20, budget=3))
    request = ask(bench, "aaa", 9, num_samples=4)
    bench.step()
    with bench.in_step() as plan:
        assert plan is not None
        assert len(plan.held) == 1
        bench.cancel(request)
        assert tree_of(bench) == [(1, 0)] * 3


def test_samples_share_the_prompts_path() -> None:
    bench = Bench(radix(20))
    ask(bench, "aaaabbbbcc", 4, num_samples=3)
    bench.step()
    assert tree_of(bench) == [(2, 3)]
    bench.drain()
    assert tree_of(bench) == [(2, 0), (1, 0), (1, 0), (1, 0)], "each said something of its own"


def test_without_prefix_caching_the_tree_stays_empty() -> None:
    bench = Bench(radix(20, caching=False))
    ask(bench, "aaaabbbbcc", 4)
    bench.drain()
    assert tree_of(bench) == []
    assert bench.pool.num_free == 20


# ---- spans, and any run ---------------------------------------------------------------------------------------------


class LongestLeaf(LeafRanking):
    """The longest leaf; among equals one that depends on the very tick of its last access."""

    def rank(self, leaf: Leaf) -> tuple[int, int]:
        return -leaf.num_pages, leaf.last_access * 7919 % 13


def on_radix(chosen: Settings, ranking: Any) -> Settings:
    return replace(
        chosen,
        prefix_index="radix",
        eviction=ranking,
        mode="recompute",
        preemption=chosen.preemption and StrictPriority,  # the one drawn may swap
        host_blocks=0,
        free_order="unhashed_first",
        leaf_first=False,
        publication="schedule",
        asynchronous=False,
    )


rankings = st.sampled_from([*RANKINGS.values(), LongestLeaf])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(workload=workloads(), ranking=rankings)
def test_spans_and_single_steps_are_the_same_run(workload: Workload, ranking: Any) -> None:
    workload = replace(workload, settings=on_radix(workload.settings, ranking))
    spans, steps = run_of(workload, spans=True), run_of(workload, spans=False)
    assert_equal(spans, steps)
    assert_sound(spans)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(case=cases(), data=st.data(), ranking=rankings)
def test_integrity_after_every_step_of_random_runs(case: Any, data: st.DataObject, ranking: Any) -> None:
    """Tree, pool and tables agree, whatever is cancelled when."""
    trace, chosen = case
    drive_at_random(trace, on_radix(chosen, ranking), data)


def test_looking_a_waiting_request_up_once_a_span_is_looking_it_up_in_every_step() -> None:
    """Thirty requests, crowded, with shared beginnings: heads wait for memory while others decode and leaves go."""
    draw = random.Random(5)
    num = 30
    trace = crowded(draw, num)
    for ranking in (RadixLRU, RANKINGS["lfu"], LongestLeaf):
        run = both(trace, radix(24, eviction=ranking))
        assert run.scheduler.tables.pool.num_evictions > 20
        assert run.num_plans < run.num_steps


def test_a_leaf_that_goes_whole_can_let_the_head_in() -> None:
    """The head would adopt a leaf of three blocks and needs one more; three are available. When the running request
    takes one, the leaf goes, and the head, with nothing to adopt, needs one of the two that are left.
    """
    trace = trace_of([0, 1, 3], [13, 8, 17], [1, 12, 1], segments=[[(0, 13)], [(5000, 8)], [(0, 12), (9000, 5)]])
    run = both(trace, radix(6, long_prefill=4, full_prompt=False))
    head = run.request(2)
    assert (head.num_cached_tokens, head.first_scheduled_ps // PS_PER_S) == (0, 6)


def crowded(draw: random.Random, num: int) -> Any:
    starts = [draw.choice([0, 100_000, 200_000]) for _ in range(num)]
    prompts = [draw.randint(9, 30) for _ in range(num)]
    segments = [[(starts[row], 8), (1_000 * row + 7, prompts[row] - 8)] for row in range(num)]
    arrivals = sorted(draw.randrange(200) for _ in range(num))
    return trace_of(arrivals, prompts, [draw.randint(5, 40) for _ in range(num)], segments=segments)


# ---- where the two forms agree --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["agent_sessions", "chat", "long_documents"])
def test_one_at_a_time_in_ample_memory_both_forms_find_the_same(name: str) -> None:
    """Nothing is evicted and nothing published late, so the hits of every request are equal."""
    trace = limit(read_trace(sample_path(name)), 120)
    forms = (Settings(None), Settings(None, prefix_index="radix", eviction=RadixLRU))
    hashed, tree = (simulate(trace, form, arrivals=Arrivals.SEQUENTIAL) for form in forms)
    hits = [[request.num_cached_tokens for request in run.requests()] for run in (hashed, tree)]
    assert hits[0] == hits[1]
    assert hashed.scheduler.tables.pool.num_cached >= tree.scheduler.tables.pool.num_cached


# ---- what cannot be -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"eviction": LRU},
            "eviction: LRU orders single blocks, pool.prefix_index=radix evicts whole leaves; exp",
        ),
        ({"prefix_index": "hash"}, "eviction: RadixLRU ranks leaves of a radix tree; it goes with pool.prefix_index=r"),
        ({"free_order": "append_all"}, "pool.free_order=append_all: with pool.prefix_index=radix, expected unhashed_"),
        ({"host_blocks": 5}, "pool.host_blocks=5: pool.prefix_index=radix cannot swap; expected 0"),
        (
            {"leaf_first": True},
            "pool.leaf_first=true: pool.prefix_index=radix evicts leaves only by itself; expect",
        ),
        ({"publication": "step_end"}, "scheduler.publication=step_end: pool.prefix_index=radix publishes what is comp"),
        ({"groups": (KVGroup(2, 8),)}, "pool.prefix_index=radix: the tree holds one KV group of full attention, the m"),
        ({"groups": (KVGroup(1), KVGroup(1))}, "pool.prefix_index=radix: the tree holds one KV group of full attenti"),
    ],
)
def test_what_the_tree_cannot_do_is_refused_in_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as caught:
        scheduler_of(radix(20, **options))
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_async_scheduling_is_refused() -> None:
    pool = PoolConfig(20, prefix_index="radix")
    factories = PolicyFactories(RadixLRU, Paged, LastArrived, Chunked, FCFS, Reservation)
    with pytest.raises(InputError, match=r"^scheduler\.async_scheduling=true: .* has no async form"):
        build_scheduler(SchedulerConfig(async_scheduling=True), pool, factories, DecisionLog(), Recorder())


def test_a_policy_that_swaps_is_refused_when_it_does() -> None:
    bench = Bench(radix(6, full_prompt=False, mode="swap"))
    ask(bench, "aaaabbbb", 9)
    ask(bench, "ccccdddd", 9)
    with pytest.raises(InputError, match=r"pool\.prefix_index=radix: .* expected preemption=recompute"):
        bench.steps(9)
