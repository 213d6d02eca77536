"""Eviction policies made for KV: each on the traffic it is for, victim by victim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from block_streams import SHARED, Build, mooncake, num_hits, oracle, told
from engine_world import EngineSetup, assert_lockstep, jittery_clock, run_trace
from hypothesis import given, settings
from test_spans import assert_equal, run_of
from workloads import Workload, workloads
from world import Settings, simulate, trace_of

from core.block_pool import BlockPool
from core.decision_log import DecisionLog, Event
from core.errors import InputError
from core.interfaces import EvictionPolicy, PolicyEnv
from core.prefix_index import HashIndex
from core.units import PS_PER_S
from engine.output_mode import ForcedTokens
from kvtwin.block_replay import Mode, replay_blocks
from policies.eviction.cost_benefit import CostBenefit
from policies.eviction.flop_aware import FlopAware
from policies.eviction.gdsf import GDSF
from policies.eviction.length_aware import LengthAware
from policies.eviction.lru import LRU
from policies.eviction.pgdsf import PGDSF
from policies.eviction.recompute_cost import LLAMA3_8B_TOKENS, RecomputeCost
from policies.eviction.reuse_times import ReuseTimes
from policies.eviction.ttl import TTL
from policies.eviction.workload_aware import WorkloadAware
from traces.block_references import BlockReferences, block_references
from traces.reading import read_trace
from traces.samples import sample_path
from traces.transforms import length_scale, limit


class Desk:
    """A pool and a clock in seconds. A text is its blocks' letters: "abc" is the blocks a, ab and abc."""

    def __init__(self, policy: Build, num_blocks: int, block_size: int = 512) -> None:
        self.now_s = 0.0
        env = PolicyEnv(lambda: round(self.now_s * PS_PER_S), num_blocks, block_size)
        self.pool = BlockPool(num_blocks, policy(env), DecisionLog(), HashIndex())

    def see(self, text: str, at_s: float = 0.0, category: int = 0) -> int:
        """A request comes and goes; returns how many of its blocks it hit."""
        self.now_s = at_s
        keys = [text[: end + 1] for end in range(len(text))]
        held = self.pool.index.leading(keys)
        num_hits = len(held)
        if held:
            self.pool.adopt(held, 0, readmission=False)
        fresh = self.pool.take(len(keys) - num_hits, 0, keys[num_hits:])
        self.pool.register(fresh, keys[num_hits:], 0, range(num_hits, len(keys)), category)
        self.pool.release([*held, *fresh][::-1], 0)
        return num_hits

    def order(self, at_s: float = 0.0) -> str:
        """What would go, first to last."""
        self.now_s = at_s
        return " ".join(str(block.key) for block in self.pool._eviction.eviction_order())


# ---- what a block costs to compute ------------------------------------------------------------------------------


def test_the_cost_of_a_block_adds_up_to_the_prompts() -> None:
    """A prompt of n tokens costs n + n²/X: at n = X attention and linear layers take the same."""
    cost = RecomputeCost(PolicyEnv(lambda: 0, 1, 16), 1024)
    assert sum(16 * cost.at(position) for position in range(64)) == 1024 + 1024
    assert RecomputeCost(PolicyEnv(lambda: 0, 1, 512), LLAMA3_8B_TOKENS).at(0) == 1 + 512 / 57258


# ---- GDSF and PGDSF ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "oracles").is_dir(), reason="no oracle values beside this checkout")
@pytest.mark.parametrize("num_blocks", [1000, 10_000, 30_000, 50_000])
def test_gdsf_is_the_published_one(num_blocks: int) -> None:
    stream = mooncake("synthetic_trace")
    expected = oracle("mooncake_synthetic_trace_own_extra.json")[str(num_blocks)]["GDSF_unit"]["misses"]
    assert len(stream) - num_hits(stream, GDSF, num_blocks) == expected


def test_gdsf_forgets_what_was_popular_once() -> None:
    """a has H = 3. Each victim raises the age by 1: d has 3, too, and a, used longer ago, goes for e."""
    assert told("aaabcdef", GDSF, 2) == ".++.bcad"


def test_pgdsf_keeps_what_is_dear_to_compute() -> None:
    """Used once each. LRU gives up the long text, which came first; PGDSF the short one: its end costs less again.

    Blocks of 512 tokens where attention equals the rest at 512: the nth costs 2, 4, 6, ...
    """
    for policy, expected in [(LRU, "ab a x"), (partial(PGDSF, attention_equals_linear_tokens=512), "a x ab")]:
        desk = Desk(policy, 3)
        desk.see("ab", at_s=0)
        desk.see("x", at_s=1)
        assert desk.order() == expected
    assert PGDSF.leaf_first, "for a parent costs less than its child: by itself it would go first"


def test_leaves_go_first_under_it_in_a_run_whatever_the_pool_says() -> None:
    """A text of four blocks, then one of three: of six blocks one has to go, and it is the first text's end."""
    trace = trace_of([0, 1, 2], [16, 12, 16], [1, 1, 1], [[1, 2, 3, 4], [5, 6, 7], [1, 2, 3, 4]], 4)
    for policy in (PGDSF, FlopAware, CostBenefit):
        run = simulate(trace, Settings(6, block_size=4, eviction=policy))
        assert run.request(2).num_cached_tokens == 12, policy


# ---- length-aware -----------------------------------------------------------------------------------------------


def test_length_aware_gives_up_the_end_of_the_longest_first() -> None:
    desk = Desk(LengthAware, 6)
    desk.see("abc")
    desk.see("xy")
    assert desk.order() == "abc ab xy a x", "all used once: by position, then by release"
    desk.see("abc")
    assert desk.order() == "xy x abc ab a", "uses come before positions"


def test_the_other_reading_of_length_aware() -> None:
    desk = Desk(partial(LengthAware, sense=-1), 6)
    desk.see("abc")
    desk.see("xy")
    assert desk.order() == "a x ab xy abc"


# ---- TTL --------------------------------------------------------------------------------------------------------


def tool_gap(gap_s: float) -> int:
    """An agent's session of three blocks (category 1) waits for a tool while chats (category 0) stream by."""
    desk = Desk(partial(TTL, ttl_s=0, category_ttl_s={1: 300}), 6)
    desk.see("abc", at_s=0, category=1)
    for number in range(10):
        desk.see("mnopqrstuv"[number] * 2, at_s=gap_s * (number + 1) / 11, category=0)
    return desk.see("abc", at_s=gap_s, category=1)


def test_ttl_keeps_a_session_over_a_tool_gap_and_loses_it_after() -> None:
    """The last chat of an hour's gap comes at 3,273 s; the pin ended at 300 s."""
    assert [tool_gap(gap_s) for gap_s in (10, 299, 3600)] == [3, 3, 0]


def test_where_everything_is_pinned_the_pin_that_ends_first_goes() -> None:
    desk = Desk(partial(TTL, ttl_s=300, category_ttl_s={1: 60}), 4)
    desk.see("a", at_s=0)
    desk.see("x", at_s=100, category=1)  # until 160
    desk.see("y", at_s=290, category=1)  # until 350
    assert desk.order(at_s=295) == "x a y", "x is free, a pinned for 5 s more"
    assert desk.order(at_s=301) == "a x y", "a and x are free: by last use"


def test_one_time_to_live_for_all_is_lru() -> None:
    stream = "abcadbebcafgabbacdfe"
    assert told(stream, TTL, 3) == told(stream, LRU, 3)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workload=workloads())
def test_pins_that_end_within_a_span_end_at_the_same_step_without_spans(workload: Workload) -> None:
    """An expiry announces nothing: a victim is named at the time of the step that needs it. Pins of a few steps."""
    ttl = partial(TTL, ttl_s=7e-11, category_ttl_s={1: 2.5e-11})
    tenants = np.arange(workload.trace.num_requests) % 3
    workload = replace(
        workload,
        trace=replace(workload.trace, tenant=tenants),
        settings=replace(workload.settings, eviction=ttl, caching=True),
    )
    assert_equal(run_of(workload, spans=True), run_of(workload, spans=False))


# ---- FLOP-aware -------------------------------------------------------------------------------------------------


def test_flop_aware_weighs_depth_against_recency() -> None:
    """Candidates: a, ab, abc of second 0 and x of second 9. Scaled: recency 0 0 0 1, depth 0 .5 1 0."""
    desk = Desk(partial(FlopAware, alpha=1.5), 4)
    desk.see("abc", at_s=0)
    desk.see("x", at_s=9)
    assert desk.order() == "a ab x abc", "S = 0, .75, 1.5, 1; when a is gone ab has depth 1/2 still"
    assert FlopAware.leaf_first


def test_flop_aware_without_flops_is_lru() -> None:
    stream = "abcadbebcafgabbacdfe"
    assert told(stream, partial(FlopAware, alpha=0), 3) == told(stream, LRU, 3)


# ---- cost-benefit -----------------------------------------------------------------------------------------------


def test_cost_benefit_weighs_cost_against_idle_time() -> None:
    """Costs 2, 4, 6 at depths 0, 1, 2. At 10 s abc is worth 6/10, x 2/3: abc goes first. At 20 s 6/20 and 2/13: x."""
    desk = Desk(partial(CostBenefit, attention_equals_linear_tokens=512), 4)
    desk.see("abc", at_s=0)
    desk.see("x", at_s=7)
    assert desk.order(at_s=10) == "a ab abc x"
    assert desk.order(at_s=20) == "a x ab abc"


# ---- workload-aware ---------------------------------------------------------------------------------------------


def test_reuse_times_are_fitted_by_category() -> None:
    """Category 1 comes back after 10 s in 9 of 19 uses; with the prior (one reuse after 100 s) 10 of 20, after 19 s."""
    times = ReuseTimes(100)
    for _ in range(9):
        times.add_use(1)
        times.add_reuse(1, 10)
    times.add_use(1)
    assert np.exp(times.log_probability(1, 0, 100)) == pytest.approx(1 - np.exp(-1)), "not fitted: the prior"
    times.refit()
    fresh, idle = (np.exp(times.log_probability(1, idle_ps, 50)) for idle_ps in (0, 19))
    assert fresh == pytest.approx(0.5 * (1 - np.exp(-50 / 19)))
    assert idle == pytest.approx(fresh * np.exp(-1))


def test_old_observations_fade() -> None:
    times = ReuseTimes(100)
    times.add_reuse(1, 900)
    times.refit()
    assert times._fitted[1] == (1.0, 500)
    times.refit()
    assert times._fitted[1] == (1.0, pytest.approx((450 + 100) / 1.5))


def two_kinds(category_of: Callable[[int], int]) -> BlockReferences:
    """Conversations come back after 40 s (four turns), documents never: a request every second, in blocks of 16."""
    rows, category = [], []
    for number in range(1200):
        is_chat = number % 4 == 0
        conversation = 10_000 + number // 160 * 40 + number % 40
        rows.append([conversation * 10, conversation * 10 + 1] if is_chat else [number * 4 + d for d in range(4)])
        category.append(category_of(int(is_chat)))
    trace = trace_of(range(1200), [16 * len(row) for row in rows], [1] * 1200, rows, 16, tenant=category)
    return block_references(trace)


def test_workload_aware_beats_lru_on_two_kinds_of_traffic() -> None:
    """What it wins, it wins by the categories: without them it is LRU."""
    hits = {
        (name, capacity): replay_blocks(two_kinds(category_of), policy, capacity, Mode.PREFIX).hit_blocks
        for name, policy, category_of in (
            ("lru", LRU, int),
            ("aware", WorkloadAware, int),
            ("blind", WorkloadAware, lambda is_chat: 0),
        )
        for capacity in (60, 100)
    }
    assert hits["lru", 60] == hits["lru", 100] == hits["blind", 60] == hits["blind", 100] == 0
    assert hits["aware", 60] > 350
    assert hits["aware", 100] > 400


def test_evicted_content_that_comes_back_is_a_reuse() -> None:
    """One block, two texts by turns: nothing ever hits, and yet both are seen to come back after 2 s."""
    desk = Desk(partial(WorkloadAware, refit_s=1), 1)
    for second in range(9):
        desk.see("ab"[second % 2], at_s=second)
    policy: Any = desk.pool._eviction
    seen = policy._reuse_times._observed[0]
    assert seen.reuse_time_ps / seen.num_reuses == 2 * PS_PER_S


# ---- on the engine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [GDSF, PGDSF, LengthAware, TTL, FlopAware, CostBenefit, WorkloadAware])
def test_lockstep_with_the_engine(policy: type[EvictionPolicy]) -> None:
    """Agent sessions in a pool that evicts: the tiny model's run, repeated in the simulator; clean shadow tags."""
    trace = length_scale(limit(read_trace(sample_path("agent_sessions")), 12), "1/32")
    setup = EngineSetup(Settings(32, 4, budget=256, eviction=policy), ForcedTokens(), clock=jittery_clock)
    engine = run_trace(trace, setup)
    assert engine.num_of(Event.EVICT) > 20
    assert_lockstep(trace, setup, engine)


# ---- bad parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "parameters", "message"),
    [
        (GDSF, {"cost": "time"}, "eviction.cost=time: expected unit or recompute"),
        (PGDSF, {"attention_equals_linear_tokens": 0}, "attention_equals_linear_tokens=0: expected a number above 0"),
        (LengthAware, {"sense": 0}, r"eviction.sense=0: expected 1 \(later blocks go first\) or -1"),
        (TTL, {"ttl_s": -1}, "eviction.ttl_s=-1: expected a number of seconds, from 0 on"),
        (TTL, {"category_ttl_s": {2: "long"}}, "eviction.category_ttl_s.2=long: expected a number of seconds"),
        (FlopAware, {"alpha": -1}, "eviction.alpha=-1: expected a number from 0 on"),
        (WorkloadAware, {"life_s": 0}, "eviction.life_s=0: expected a number of seconds above 0"),
    ],
)
def test_bad_parameters(policy: type[EvictionPolicy], parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        policy(PolicyEnv(lambda: 0, 4, 16), **parameters)
