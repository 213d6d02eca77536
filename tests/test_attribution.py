"""Which eviction cost which recompute, charged block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from eviction_policies import CAUSAL
from hypothesis import given, settings
from hypothesis import strategies as st
from world import Bench, Run, Settings, simulate, trace_of

import kvtwin
from core.attribution import Attribution
from core.columns import charge_arrays
from core.content import HashKeys
from core.interfaces import EvictionPolicy
from core.kv_group import KVGroup
from core.metrics import Records, RequestColumns, compute_metrics
from policies.eviction.fifo import FIFO
from traces.replay import Arrivals


def attribution_of(run: Run) -> Attribution:
    attribution = run.scheduler.tables.pool.attribution
    assert attribution is not None
    return attribution


def charges(run: Run) -> list[tuple[int, ...]]:
    """(who paid, tokens, when, evicted when, in which step, for whom), times in seconds."""
    arrays = charge_arrays(attribution_of(run).charges)
    return list(zip(*(column.astype(int).tolist() for column in arrays.values()), strict=True))


def metrics_of(run: Run) -> dict[str, Any]:
    attribution = run.scheduler.tables.pool.attribution
    pool = run.scheduler.tables.pool
    return compute_metrics(
        Records(
            RequestColumns.of(run.request_arrays()),
            [run.step_totals()],
            [],
            num_blocks=pool.num_blocks,
            block_size_tokens=4,
            has_prefix_information=True,
            num_evictions=pool.num_evictions,
            num_costly_evictions=None if attribution is None else attribution.num_costly,
        )
    )


THREE_TEXTS = trace_of([0, 1, 2], [16, 16, 16], [1, 1, 1], [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]], 4)


def test_who_evicted_its_blocks() -> None:
    """Six blocks, LRU, a step a second. At 1 s request 1 takes the two free blocks and the end of the first text; at
    2 s request 0's text comes back: blocks 1 and 2 hit, and of what is lost block 3 could have hit. Block 4 could not:
    a token has to be computed.
    """
    run = simulate(THREE_TEXTS, Settings(6, block_size=4))
    assert charges(run) == [(2, 4, 2, 1, 1, 1)]
    assert [request.num_recomputed_evicted_tokens for request in run.requests()] == [0, 0, 4]
    assert attribution_of(run).num_costly == 1
    metrics = metrics_of(run)
    assert (metrics["recomputed_evicted_tokens"], metrics["num_costly_evictions"]) == (4, 1)
    assert metrics["num_free_evictions"] == metrics["num_evictions"] - 1 == 3


def test_what_hangs_on_an_evicted_beginning_is_charged_to_it() -> None:
    """FIFO takes blocks 1 and 2 of the first text and leaves 3, which nobody reaches: its tokens are charged to the
    eviction of 2, the last one before it.
    """
    run = simulate(THREE_TEXTS, Settings(6, block_size=4, eviction=FIFO))
    assert charges(run) == [(2, 12, 2, 1, 1, 1)]
    assert attribution_of(run).num_costly == 2


def test_decodes_that_need_a_block_are_told_apart() -> None:
    """Two requests grow in the same step; each takes one block of the cached text, and is named for it."""
    bench = Bench(Settings(4, block_size=4))
    bench.add(9, 1, HashKeys(0, [1, 2, 3], 4, 4, 9))
    bench.step()
    bench.add(4, 4)
    bench.add(4, 4)
    bench.drain()
    bench.add(9, 1, HashKeys(3, [1, 2, 3], 4, 4, 9))
    bench.drain()
    attribution = bench.pool.attribution
    assert attribution is not None
    assert attribution.charges.request_id == [3, 3]
    assert attribution.charges.evicted_for == [2, 1], "the text's first block went last"


@pytest.mark.parametrize(("num_decodes", "num_prefill", "num_evicted"), [(20, 17, 16), (24, 21, 20)])
def test_a_prefill_that_is_cut_short_is_charged_for_what_it_computed(
    num_decodes: int, num_prefill: int, num_evicted: int
) -> None:
    """The text of request 0 was evicted by the others' growth when it comes again, three tokens a step, and is
    preempted in the midst. With the longer decode, a block of what it had computed is evicted once more, and charged
    once more.
    """
    trace = trace_of(
        [0, 10, 12, 20], [17, 4, 20, 17], [1, num_decodes, 1, 1], [range(5), [50], range(100, 105), range(5)], 4
    )
    run = simulate(trace, Settings(9, block_size=4, budget=3, full_prompt=False))
    again = run.request(3)
    assert again.num_preemptions == 1
    assert (again.num_prefill_tokens, again.num_recomputed_evicted_tokens) == (num_prefill, num_evicted)
    assert sum(tokens for who, tokens, *_ in charges(run) if who == 3) == num_evicted


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    policy=st.sampled_from(CAUSAL),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(1, 24)), min_size=1, max_size=14),
    num_blocks=st.integers(7, 12),
    leaf_first=st.booleans(),
)
def test_with_what_was_hit_it_adds_up_to_an_infinite_cache(
    policy: type[EvictionPolicy], rows: list[tuple[int, int, int]], num_blocks: int, leaf_first: bool
) -> None:
    """One request at a time: a block hits, or was evicted and is charged for, or was never there."""
    hash_ids = [
        [family * 100 + d if d < num_shared else 1000 + row * 100 + d for d in range(-(-num_tokens // 4))]
        for row, (family, num_shared, num_tokens) in enumerate(rows)
    ]
    trace = trace_of([0] * len(rows), [num_tokens for *_, num_tokens in rows], [2] * len(rows), hash_ids, 4)
    chosen = Settings(num_blocks, block_size=4, eviction=policy, leaf_first=leaf_first)
    run = simulate(trace, chosen, arrivals=Arrivals.SEQUENTIAL)
    unbounded = simulate(trace, Settings(None, block_size=4), arrivals=Arrivals.SEQUENTIAL)
    for request, ideal in zip(run.requests(), unbounded.requests(), strict=True):
        assert request.num_cached_tokens + request.num_recomputed_evicted_tokens == ideal.num_cached_tokens
    assert attribution_of(run).num_costly <= run.scheduler.tables.pool.num_evictions
    assert attribution_of(unbounded).num_costly == 0


def test_where_it_is_not_attributed_it_is_none_not_0() -> None:
    chosen_ones = [
        Settings(9, block_size=4, caching=False),
        Settings(9, block_size=4, groups=(KVGroup(1, window_tokens=8),)),
        Settings(9, block_size=4, attribution=False),
    ]
    for chosen in chosen_ones:
        metrics = metrics_of(simulate(THREE_TEXTS, chosen))
        assert metrics["recomputed_evicted_tokens"] is None
        assert metrics["num_costly_evictions"] is None
        assert metrics["num_free_evictions"] is None


def test_the_evictable_share_counts_from_the_first_eviction_on() -> None:
    """From 1 s on: four blocks in use and two cached while a text is computed, six cached once it is done."""
    metrics = metrics_of(simulate(THREE_TEXTS, Settings(6, block_size=4)))
    assert metrics["evictable_ratio"] == {"time_mean": pytest.approx(2 / 6), "min": 2 / 6}
    assert metrics_of(simulate(THREE_TEXTS, Settings(60, 4)))["evictable_ratio"] == {"time_mean": None, "min": None}


def test_a_run_leaves_it_in_its_folder(tmp_path: Path) -> None:
    run = kvtwin.simulate("agent_sessions_sample", overrides=["pool.num_blocks=600", "trace.limit=80"], out=tmp_path)
    metrics = run.summary["metrics"]
    with np.load(tmp_path / "attribution.npz") as rows:
        assert rows["num_tokens"].sum() == metrics["recomputed_evicted_tokens"] > 0
        assert (rows["evicted_s"] < rows["computed_s"]).all()
        by_request = np.bincount(rows["request_id"], rows["num_tokens"], len(run.requests["request_id"]))
    np.testing.assert_array_equal(run.requests["num_recomputed_evicted_tokens"], by_request)
    assert 0 < metrics["num_costly_evictions"] < metrics["num_evictions"]
