"""Many replicas: who serves what, and a clock on which spans, single steps and replicas by themselves all agree."""

from __future__ import annotations

from dataclasses import replace

from fleets import places, simulate_fleet
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spans import assert_equal, assert_sound
from workloads import Workload, workloads
from world import Run

from policies.routing.cache_aware import CacheAware
from policies.routing.hash import Hash
from policies.routing.least_kv_use import LeastKVUse
from policies.routing.least_outstanding import LeastOutstanding
from policies.routing.power_of_two import PowerOfTwo
from policies.routing.prefix_aware import PrefixAware
from policies.routing.random import Random
from policies.routing.round_robin import RoundRobin
from policies.routing.session_affinity import SessionAffinity

STATIC = [RoundRobin, Random, Hash]
ROUTINGS = [*STATIC, LeastOutstanding, PowerOfTwo, LeastKVUse, SessionAffinity, PrefixAware, CacheAware]


def fleet_of(workload: Workload, num_replicas: int, routing: type, spans: bool) -> list[Run]:
    chosen = replace(workload.settings, spans=spans, asynchronous=False)
    return simulate_fleet(
        workload.trace, chosen, num_replicas, routing, workload.cost, workload.arrivals, workload.concurrency
    )


@settings(max_examples=120, deadline=None, derandomize=True)
@given(workload=workloads(), num_replicas=st.integers(2, 4), routing=st.sampled_from(ROUTINGS))
def test_a_fleet_decides_in_spans_as_in_single_steps(workload: Workload, num_replicas: int, routing: type) -> None:
    spans, steps = (fleet_of(workload, num_replicas, routing, spans) for spans in (True, False))
    assert places(spans) == places(steps)
    for ours, theirs in zip(spans, steps, strict=True):
        assert_equal(ours, theirs)
        assert_sound(ours)
