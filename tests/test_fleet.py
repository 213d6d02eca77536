"""A fleet as a product: the same run whichever way it is carried out, one summary, clear words where it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Kvtwin, in_folder, refusals

import kvtwin
from core.errors import InputError
from core.waste import SHARES
from engine.interrupt import DeferredInterrupt
from kvtwin import Request, RoutingPolicy, StaticRouting
from kvtwin.composition import compose_config
from kvtwin.fleet import Watch, simulate_fleet
from kvtwin.progress import Silent
from kvtwin.simulating import load_cost, load_simulation
from policies.routing.hash import Hash


class HashOnOneClock(RoutingPolicy):
    """Decides as Hash does, but does not say that it goes by the request alone: replicas share a clock."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._hash = Hash(env)

    def route(self, request: Request, replicas: Any) -> int:
        return self._hash.place(request, len(replicas))


CROWDED = {"pool": {"num_blocks": 300}, "eviction": "s3fifo", "decisions": "full"}


def fleet(routing: Any = "hash", shards: Any = 1, num_replicas: int = 3, **choices: Any) -> Any:
    cluster = {"num_replicas": num_replicas, "shards": shards}
    options = CROWDED | {"cluster": cluster, "routing": routing} | choices
    return kvtwin.simulate("agent_sessions_sample", overrides=["trace.limit=80"], **options)


def assert_same(ours: Any, theirs: Any) -> None:
    for name in ("requests", "steps", "gaps"):
        columns, others = getattr(ours, name), getattr(theirs, name)
        assert columns.keys() == others.keys()
        for column in columns:
            np.testing.assert_array_equal(columns[column], others[column], err_msg=f"{name}.{column}")
    for block in ("metrics", "decisions", "trace", "pool", "ignored"):
        assert ours.summary[block] == theirs.summary[block], block
    assert ours.summary["fleet"]["replicas"] == theirs.summary["fleet"]["replicas"]


def test_one_clock_one_process_and_two_processes_are_the_same_run_bit_for_bit():
    """Sessions with think times, under pressure, with a policy that draws: every time, block id and digest."""
    together, apart, sharded = fleet(HashOnOneClock), fleet(), fleet(shards=2)
    assert_same(together, apart)
    assert_same(apart, sharded)
    assert apart.summary["metrics"]["num_evictions"] > 0


def test_one_replica_is_the_run_without_a_fleet():
    alone = kvtwin.simulate("agent_sessions_sample", overrides=["trace.limit=80"], **CROWDED)
    assert "fleet" not in alone.summary
    assert "replica" not in alone.requests
    again = fleet(num_replicas=1)
    assert again.summary["decisions"] == alone.summary["decisions"]


def test_a_fleets_figures_are_those_of_its_replicas_together():
    run = fleet("round_robin")
    block, metrics, replica = run.summary["fleet"], run.summary["metrics"], run.requests["replica"]
    assert replica.tolist() == [row % 3 for row in range(80)]
    assert block["replicas"]["num_requests"] == [27, 27, 26]
    assert block["imbalance"]["num_requests"] == pytest.approx(27 / (80 / 3))
    for name in ("prompt_tokens", "output_tokens"):
        assert sum(block["replicas"][name]) == metrics[name]
    assert sum(block["replicas"]["prefix_hit_tokens"]) == metrics["prefix_hit_tokens"]
    assert block["replicas"]["num_steps"] == np.bincount(run.steps["replica"]).tolist()
    assert metrics["outcomes"]["finished"] == 80


def test_use_of_memory_is_averaged_over_each_replicas_own_time():
    """One request each, at 0 s and at 1000 s: nobody idles between the one's end and the other's start."""
    run = kvtwin.simulate(
        two_requests_far_apart(), routing="round_robin", cluster={"num_replicas": 2}, pool={"num_blocks": 10}
    )
    use = run.summary["metrics"]["kv_utilization_ratio"]
    assert (use["time_mean"], use["peak"]) == (pytest.approx(0.1), 0.1)


def two_requests_far_apart() -> Any:
    from world import trace_of

    return trace_of([0, 1000], [8, 8], [4, 4])


def test_replicas_draw_different_random_numbers():
    run = fleet("round_robin", eviction="random")
    digests = run.summary["fleet"]["replicas"]["decisions"]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("choices", "line"),
    [
        (
            {"routing": "least_outstanding", "shards": 2},
            r"cluster.shards=2: this routing looks at the replicas; expected 1",
        ),
        ({"routing": "random", "shards": 2}, r"cluster.shards=2: this routing sends turns of one session to several"),
        ({"eviction": "belady"}, r"cluster.num_replicas=3: this eviction policy knows the future of one replica"),
        (
            {"routing": "least_outstanding", "scheduler": {"async_scheduling": True}},
            r"scheduler.async_scheduling=true: this routing looks at the replicas, and replicas on one clock cannot",
        ),
        (
            {"routing": HashOnOneClock, "shards": 1, "pool": {"num_blocks": 1}},
            r"none of the 80 requests can run: the fir",
        ),
    ],
)
def test_what_a_fleet_cannot_do_is_refused(choices, line):
    with pytest.raises(InputError, match=line):
        fleet(**choices)


def test_a_policy_that_names_no_replica_is_named():
    class Off(RoutingPolicy):
        def route(self, request: Request, replicas: Any) -> int:
            return len(replicas)

    class StaticallyOff(StaticRouting):
        def place(self, request: Request, num_replicas: int) -> int:
            return -1

    with pytest.raises(InputError, match=r"routing: Off.route answered 3; expected a replica, 0 to 2"):
        fleet(Off)
    with pytest.raises(InputError, match=r"routing: StaticallyOff.place answered -1; expected a replica, 0 to 2"):
        fleet(StaticallyOff)


def test_async_replicas_run_each_by_itself():
    run = fleet("hash", scheduler={"async_scheduling": True})
    assert run.summary["metrics"]["outcomes"]["finished"] == 80


def test_after_ctrl_c_shards_that_run_stop_and_no_other_begins():
    words = ["trace=agent_sessions_sample", "cluster.num_replicas=4", "cluster.shards=2", "routing=hash"]
    config = compose_config("sim", words)
    experiment, interrupt = load_simulation(config), DeferredInterrupt()
    interrupt.requested = True
    records = simulate_fleet(experiment, Watch(load_cost(config), Silent(), interrupt))
    assert [len(each.requests["request_id"]) > 1 for each in records] == [False] * 4
    assert sum(each.num_plans for each in records) == 0


class CtrlC(Silent):
    """Presses it when progress is shown for the `num_looks`th time."""

    def __init__(self, interrupt: DeferredInterrupt, num_looks: int) -> None:
        self._interrupt, self._num_left = interrupt, num_looks

    def show(self, num_done: int) -> None:
        self._num_left -= 1
        self._interrupt.requested = self._num_left <= 0


def test_after_ctrl_c_whoever_waited_for_a_replica_to_look_up_has_arrived():
    config = compose_config("sim", ["trace.rate_scale=8", "cluster.num_replicas=4", "routing=least_outstanding"])
    experiment, interrupt = load_simulation(config), DeferredInterrupt()
    records = simulate_fleet(experiment, Watch(load_cost(config), CtrlC(interrupt, num_looks=12), interrupt))
    arrived = np.sort(np.concatenate([each.requests["request_id"] for each in records]))
    assert 60 < len(arrived) < 990
    np.testing.assert_array_equal(arrived, np.arange(len(arrived)))  # nobody is missing in between


@pytest.fixture
def command(tmp_path, monkeypatch, capsys) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


def test_the_command_tells_how_the_work_was_spread(command):
    finished = command(
        "sim", "trace=agent_sessions_sample", "cluster.num_replicas=2", "routing=hash", "out=run", "decisions=full"
    )
    assert finished.status == 0
    lines = finished.out.splitlines()
    heading = next(number for number, line in enumerate(lines) if "2 replicas" in line)
    assert lines[heading].split() == ["2", "replicas", "min", "mean", "max", "max/mean"]
    assert lines[heading + 2].split()[:1] == ["Requests"]
    assert sorted(path.name for path in Path("run").glob("*decisions*")) == [
        "replica-0.decisions.jsonl.gz",
        "replica-1.decisions.jsonl.gz",
    ]
    labels = json.loads(Path("run/summary.json").read_text())["labels"]
    assert (labels["routing"], labels["num_replicas"]) == ("hash", 2)
    assert "replicas" not in labels


def test_the_engine_is_one_replica(command):
    assert refusals(command)("engine", "cluster.num_replicas=2").startswith(
        "cluster.num_replicas=2: the engine is one replica; expected 1"
    )


def test_charts_over_time_add_the_replicas_up():
    """Ten blocks each, one request of one block at 0 s and one at 1000 s, four steps each; then the block is cached."""
    from kvtwin.report.fleet_series import on_one_clock

    run = kvtwin.simulate(
        two_requests_far_apart(), routing="round_robin", cluster={"num_replicas": 2}, pool={"num_blocks": 10}
    )
    steps = on_one_clock(run).steps
    assert (steps["num_running"][0], steps["num_referenced_blocks"][0], steps["num_free_blocks"][0]) == (1, 1, 19)
    assert (steps["num_running"][1000], steps["num_referenced_blocks"][1000]) == (0, 0)
    assert steps["num_preemptions"].sum() == 0


def test_a_report_shows_each_replica(command):
    assert command("sim", "trace.limit=30", "cluster.num_replicas=2", "out=run", "report=true").status == 0
    page = Path("run/report.html").read_text()
    assert "Routed by RoundRobin. max/mean is 1 where all have the same." in page
    assert page.count('<th scope="row" data-column="replica">1</th>') == 1
    assert "All replicas together, as they stand at 2,000 moments, evenly spaced." in page


def test_without_a_row_a_step_the_figures_stay():
    """To the last bit, but those of full load: nobody counts who waits in which step."""
    brief, full = fleet(steps=False), fleet()
    assert brief.summary["decisions"] == full.summary["decisions"]
    assert len(brief.steps["start_s"]) == len(brief.gaps["gap_s"]) == 0
    assert brief.summary["cost"]["num_steps"] == full.summary["cost"]["num_steps"] == len(full.steps["start_s"])
    assert brief.summary["fleet"] == full.summary["fleet"]
    ours, theirs = brief.summary["metrics"], full.summary["metrics"]
    full_load = {"saturated_num_running": None, "saturated_share_ratio": dict.fromkeys(SHARES)}
    assert ours == theirs | full_load != theirs
