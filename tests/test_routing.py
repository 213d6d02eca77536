"""Many replicas: who serves what, and a clock on which spans, single steps and replicas by themselves all agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fleets import places, simulate_fleet
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from shapes import CONF, bundled
from test_spans import assert_equal, assert_sound
from workloads import Workload, workloads
from world import Run, Settings, trace_of

from core.content import BlockKeys, HashKeys, PrivateKeys
from core.errors import InputError
from core.interfaces import PolicyEnv
from core.least import first_least, largest
from core.request import Request
from core.routing import Replicas, RoutingPolicy
from core.units import PS_PER_S
from kvtwin.placement import bare_request
from policies.eviction.fifo import FIFO
from policies.routing.cache_aware import CacheAware
from policies.routing.hash import Hash
from policies.routing.least_kv_use import LeastKVUse
from policies.routing.least_outstanding import LeastOutstanding
from policies.routing.power_of_two import PowerOfTwo
from policies.routing.prefix_aware import PrefixAware
from policies.routing.random import Random
from policies.routing.round_robin import RoundRobin
from policies.routing.session_affinity import SessionAffinity
from policies.routing.spreading import spread


class Curious(RoutingPolicy):
    """Goes by all that it is told and can see, and when: what differs anywhere leads elsewhere."""

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self.told: list[tuple[int, ...]] = []

    def route(self, request: Request, replicas: Replicas) -> int:
        seen = [(view.num_outstanding, view.num_waiting, view.num_running) for view in replicas]
        cached, fewest = replicas.num_cached_tokens(request), replicas.with_fewest_referenced_blocks()
        assert (cached, fewest) == (Replicas.num_cached_tokens(replicas, request), _fewest(replicas))
        return spread(self.env.now(), self.told, seen, cached, fewest) % len(replicas)

    def on_done(self, request: Request, replica: int) -> None:
        self.told.append((self.env.now(), request.request_id, request.finish_ps, replica))


class Patient(RoutingPolicy):
    """Waits for ends alone, and goes by them, by what is there, and at times by what one of the replicas shows."""

    looks_back = False

    def __init__(self, env: PolicyEnv) -> None:
        super().__init__(env)
        self.told: list[tuple[int, ...]] = []

    def route(self, request: Request, replicas: Replicas) -> int:
        known = (self.env.now(), self.told, list(replicas.num_outstanding()))
        drawn = spread(*known) % (3 * len(replicas))
        if drawn < len(replicas):
            view = replicas[drawn]
            known += (view.num_waiting, view.num_running, view.num_referenced_blocks, view.num_cached_tokens(request))
        return spread(*known) % len(replicas)

    def on_done(self, request: Request, replica: int) -> None:
        self.told.append((self.env.now(), request.request_id, request.finish_ps, replica))


class Indifferent(RoutingPolicy):
    """Hears of no end, and asks one replica or nobody how many are there."""

    looks_back = False

    def route(self, request: Request, replicas: Replicas) -> int:
        drawn = spread(request.request_id) % (2 * len(replicas))
        num_there = replicas[drawn].num_outstanding if drawn < len(replicas) else 0
        return spread(self.env.now(), num_there) % len(replicas)


def _fewest(replicas: Replicas) -> list[int]:
    return Replicas.with_fewest_referenced_blocks(replicas)


STATIC = [RoundRobin, Random, Hash]
LOOKING = [LeastOutstanding, PowerOfTwo, LeastKVUse, SessionAffinity, PrefixAware, CacheAware]
ROUTINGS = [*STATIC, *LOOKING, Curious, Patient, Patient, Indifferent]


def fleet_of(workload: Workload, num_replicas: int, routing: type, spans: bool) -> list[Run]:
    chosen = replace(workload.settings, spans=spans, asynchronous=False)
    return simulate_fleet(
        workload.trace,
        chosen,
        num_replicas,
        routing,
        workload.cost,
        workload.arrivals,
        workload.concurrency,
        one_clock=not spans,
    )


@settings(max_examples=120, deadline=None, derandomize=True)
@given(workload=workloads(), num_replicas=st.integers(2, 4), routing=st.sampled_from(ROUTINGS))
def test_a_fleet_decides_in_spans_as_in_single_steps(workload: Workload, num_replicas: int, routing: type) -> None:
    """And replicas that go on by themselves, as they do where they can, as on the one clock of the single steps."""
    spans = fleet_of(workload, num_replicas, routing, True)
    steps = fleet_of(workload, num_replicas, routing, False)
    assert places(spans) == places(steps)
    for ours, theirs in zip(spans, steps, strict=True):
        assert_equal(ours, theirs)
        assert_sound(ours)


# ---- who serves whom --------------------------------------------------------------------------------------------


class View:
    """A replica as a test wants it."""

    def __init__(self, num_outstanding: int = 0, num_referenced_blocks: int = 0, num_cached_tokens: int = 0) -> None:
        self.num_outstanding = num_outstanding
        self.num_referenced_blocks = num_referenced_blocks
        self._num_cached_tokens = num_cached_tokens

    def num_cached_tokens(self, request: Request) -> int:
        return self._num_cached_tokens

    def has_first_token(self, request: Request) -> bool:
        return request.first_token_ps >= 0


def routed(policy: type, *views: View, request: Request | None = None, **parameters: Any) -> int:
    return policy(env(), **parameters).route(request or asked(0), Replicas(views))


def env(seed: int = 0, now: Any = lambda: 0) -> PolicyEnv:
    return PolicyEnv(now, 100, 16, seed)


def asked(number: int, text: int | None = None, num_prompt: int = 64, session: int = 0) -> Request:
    """Requests of equal `text` have prompts of equal blocks of 16."""
    if text is None:
        keys: BlockKeys = PrivateKeys(number)
    else:
        keys = HashKeys(number, range(1000 * text, 1000 * text + num_prompt // 16), 16, 16, num_prompt)
    return Request(number, 0, num_prompt, 8, keys, session_id=session)


def test_round_robin_deals_like_cards():
    assert [RoundRobin(env()).place(asked(number), 3) for number in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_random_is_drawn_from_the_seed_and_spreads():
    drawn = [Random(env()).place(asked(number), 4) for number in range(4000)]
    assert np.bincount(drawn).tolist() == [997, 1052, 934, 1017]
    assert drawn[:8] != [Random(env(seed=1)).place(asked(number), 4) for number in range(8)]


@pytest.mark.parametrize(
    ("by", "alike", "other"),
    [
        ("session", [asked(1, session=5), asked(2, session=5)], asked(3, session=6)),
        ("prefix", [asked(1, text=7), asked(2, text=7, num_prompt=500)], asked(3, text=8)),
        ("prefix", [asked(1, text=7, num_prompt=30), asked(2, text=7, num_prompt=31)], asked(3, text=7, num_prompt=15)),
    ],
)
def test_what_is_hashed_alike_meets_again(by, alike, other):
    policy = Hash(env(), by=by)
    one, two = (policy.place(request, 1 << 20) for request in alike)
    assert one == two
    assert policy.place(other, 1 << 20) != one


@pytest.mark.parametrize("policy", [RoundRobin(env()), Random(env()), Hash(env()), Hash(env(), by="tenant")])
def test_one_attribute_is_all_that_these_look_at(policy):
    request = asked(7, session=4)
    request.tenant = 3
    alone = bare_request(policy.placed_by, getattr(request, policy.placed_by))
    assert policy.place(request, 1 << 20) == policy.place(alone, 1 << 20)
    assert Hash(env(), by="prefix").placed_by is None


def test_the_shortest_queue_is_joined_and_the_first_of_equals():
    assert routed(LeastOutstanding, View(3), View(1), View(1)) == 1


def test_the_better_of_two_choices_is_taken():
    """With two replicas both are drawn; of ten, number n wins (9 - n) of 45 draws."""
    assert [routed(PowerOfTwo, View(2), View(1), num_choices=2) for _ in range(3)] == [1, 1, 1]
    policy, views = PowerOfTwo(env()), Replicas(View(number) for number in range(10))
    chosen = [policy.route(asked(number), views) for number in range(1000)]
    assert np.bincount(chosen, minlength=10).tolist() == [196, 185, 161, 114, 115, 93, 64, 52, 20, 0]


def test_two_choices_flatten_what_one_choice_leaves_uneven():
    """Balls into bins: 1,000 into 1,000. One choice: about log n / log log n; two: about log log n / log 2."""
    policy, views = PowerOfTwo(env()), Replicas(View() for _ in range(1000))
    for number in range(1000):
        views[policy.route(asked(number), views)].num_outstanding += 1
    thrown = np.bincount([Random(env()).place(asked(number), 1000) for number in range(1000)])
    assert (max(view.num_outstanding for view in views), thrown.max()) == (3, 7)


def test_least_kv_use_counts_blocks_and_then_requests():
    assert routed(LeastKVUse, View(0, 9), View(5, 4), View(2, 4)) == 2


def test_a_session_stays_until_its_home_is_too_full():
    policy, views = SessionAffinity(env(), max_excess=2), Replicas([View(1), View(0)])
    assert policy.route(asked(0, session=4), views) == 1
    views[1].num_outstanding = 3
    assert policy.route(asked(1, session=4), views) == 1
    views[1].num_outstanding = 4
    assert policy.route(asked(2, session=4), views) == 0
    views[1].num_outstanding = 0
    assert policy.route(asked(3, session=4), views) == 0


def test_prefix_aware_weighs_prefill_against_what_is_there():
    """Dynamo's formula. A prompt of 64 tokens, 4 blocks. Replica 0 has all but one of them and one request of 160
    tokens without a token yet: 1 x (1 + 10) + 10 = 21. Replica 1 has nothing: 4 + 0.
    """
    policy = PrefixAware(env())
    assert policy.route(asked(0, num_prompt=160), Replicas([View(), View()])) == 0
    views = Replicas([View(num_cached_tokens=48), View()])
    assert policy.route(asked(1), views) == 1
    long = asked(2, num_prompt=160)
    policy = PrefixAware(env())
    assert policy.route(long, views) == 0
    long.first_token_ps = 5  # its prompt is computed: 1 + 10 against 4
    assert policy.route(asked(3), views) == 1
    policy.on_done(long, 0)  # 1 + 0 against 4 + (4 + 4)
    assert policy.route(asked(4), views) == 0
    assert routed(PrefixAware, View(), View(num_cached_tokens=16), overlap_weight=0.0) == 0


def test_prefix_aware_draws_where_it_is_warm():
    views = Replicas([View(num_cached_tokens=48), View()])
    chosen = [routed(PrefixAware, *views, temperature=0.5) for _ in range(5)]
    assert len(set(chosen)) == 1  # of one seed
    drawn = [PrefixAware(env(seed), temperature=0.5).route(asked(0), views) for seed in range(1000)]
    assert sum(drawn) == pytest.approx(1000 / (1 + np.exp(2)), abs=30)


def test_cache_aware_follows_the_prefix_until_loads_part():
    """SGLang's rules: the second request of a text goes where the first went, unless that one has 32 more and the
    other has none; a new text goes to the replica that was sent the least.
    """
    policy, views = CacheAware(env()), Replicas([View(), View()])
    assert policy.route(asked(0, text=1), views) == 0
    assert policy.route(asked(1, text=2), views) == 1
    assert policy.route(asked(2, text=3, num_prompt=160), views) == 0
    assert policy.route(asked(3, text=1), views) == 0
    views[0].num_outstanding = 32
    assert policy.route(asked(4, text=1), views) == 0
    views[0].num_outstanding = 33
    assert policy.route(asked(5, text=1), views) == 1
    views[0].num_outstanding = 0
    assert policy.route(asked(6, text=1), views) == 1  # the latest to be sent it


def test_cache_aware_forgets_what_was_unused_longest():
    now = [0]
    policy, views = (
        CacheAware(env(now=lambda: now[0]), max_tree_blocks=4, eviction_interval_s=1.0),
        Replicas([View(), View()]),
    )
    assert [policy.route(asked(number, text=number), views) for number in range(4)] == [0, 1, 0, 1]
    now[0] = 2 * 10**12
    assert policy.route(asked(4, text=2), views) == 0  # remembered
    assert policy.route(asked(5, text=1), views) == 0  # forgotten: a new text, and both were sent as much


def test_cache_aware_forgets_a_part_of_a_prompt_that_no_other_has():
    """Six blocks and five, of which four each are kept: both were sent as much, and the first of equals is taken."""
    now = [0]
    policy, views = CacheAware(env(now=lambda: now[0]), max_tree_blocks=4), Replicas([View(), View()])
    assert [policy.route(asked(number, num_prompt=num), views) for number, num in enumerate([96, 80])] == [0, 1]
    now[0] = 60 * 10**12
    assert policy.route(asked(2), views) == 0
    assert policy.route(asked(3), views) == 1  # 8 and 4


@pytest.mark.parametrize(
    ("policy", "parameters", "line"),
    [
        (Hash, {"by": "user"}, "routing.by=user: expected one of session, tenant, prefix"),
        (Hash, {"prefix_blocks": 0}, "routing.prefix_blocks=0: expected a whole number of at least 1"),
        (PowerOfTwo, {"num_choices": 0}, "routing.num_choices=0: expected a whole number of at least 1"),
        (SessionAffinity, {"max_excess": -1}, "routing.max_excess=-1: expected a whole number from 0 on, or null"),
        (PrefixAware, {"temperature": -1}, "routing.temperature=-1: expected a number from 0 on"),
        (CacheAware, {"cache_threshold": "x"}, "routing.cache_threshold=x: expected a number from 0 on"),
    ],
)
def test_parameters_that_cannot_be_are_refused(policy, parameters, line):
    with pytest.raises(InputError, match=line):
        policy(env(), **parameters)


# ---- the clock --------------------------------------------------------------------------------------------------


def test_all_arrivals_of_an_instant_are_in_before_anybody_plans():
    """Steps of a second. Three requests at 0 s, dealt to two replicas: the two of replica 0 share its first step."""
    runs = simulate_fleet(trace_of([0] * 3, [4] * 3, [1] * 3), Settings(10), 2, RoundRobin)
    assert [run.num_steps for run in runs] == [1, 1]
    assert places(runs) == [0, 1, 0]


def test_a_follow_up_sees_the_ends_of_all_steps_of_its_instant():
    """Both replicas end their requests at 2 s. The next turn of the first is routed when both have: to replica 0."""
    trace = trace_of([0, 0, 0], [4, 4, 4], [2, 2, 1], parent=[-1, -1, 0], think_time_ps=[-1, -1, 0])
    runs = simulate_fleet(trace, Settings(10), 2, LeastOutstanding)
    assert places(runs) == [0, 1, 0]
    assert runs[0].request(2).first_scheduled_ps == 2 * PS_PER_S


def test_an_arrival_on_a_boundary_does_not_see_the_end_of_that_step():
    """Replica 0 ends its only request at 2 s, when the third arrives; replica 1 has a longer one. To the router both
    are busy with one: the first of equals.
    """
    runs = simulate_fleet(trace_of([0, 0, 2], [4] * 3, [2, 9, 1]), Settings(10), 2, LeastOutstanding)
    assert places(runs) == [0, 1, 0]
    runs = simulate_fleet(trace_of([0, 0, 2], [4] * 3, [9, 2, 1]), Settings(10), 2, LeastOutstanding)
    assert places(runs) == [0, 1, 0]
    runs = simulate_fleet(trace_of([0, 0, 2.5], [4] * 3, [9, 2, 1]), Settings(10), 2, LeastOutstanding)
    assert places(runs) == [0, 1, 1]


def test_an_arrival_does_not_put_off_what_is_due_before_it():
    """The first, of two samples, is planned when it comes; the router looks at nobody until the next comes."""
    trace = trace_of([0, 0.5], [4, 4], [3, 3], num_samples=[2, 1])
    (run,) = simulate_fleet(trace, Settings(10, eviction=FIFO), 1, LeastOutstanding)
    assert [run.request(number).first_scheduled_ps for number in (0, 1)] == [0, PS_PER_S]


def test_of_equals_the_first_has_the_least():
    assert [first_least(values) for values in ([3], [2, 1, 5, 1], [0, 0])] == [0, 1, 0]
    assert [largest(values) for values in ([3], [2, 5, 1])] == [3, 5]


# ---- the guide --------------------------------------------------------------------------------------------------


def test_the_guide_names_every_policy_and_its_parameters():
    guide = (CONF.parent / "docs" / "routing.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in guide.splitlines() if line.startswith("| `")]
    told = {row[0].strip("`"): {word.strip("` ") for word in row[2].split(",")} - {""} for row in rows}
    files = {name: OmegaConf.load(CONF / "routing" / f"{name}.yaml") for name in bundled("routing") if name != "own"}
    assert told == {name: set(map(str, config)) - {"_target_"} for name, config in files.items()}
