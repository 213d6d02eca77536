"""Policies that know the future: what they are told, where, and that nobody meets one by accident."""

from __future__ import annotations

from typing import Any

import pytest
from command import Kvtwin, in_folder
from world import Settings, scheduler_of, trace_of

import kvtwin
from core.content import PrivateKeys
from core.errors import InputError
from core.foresight import Foresight
from core.interfaces import PolicyEnv
from core.request import Request
from kvtwin.foreseeing import foresight_of
from policies.eviction.belady import Belady
from traces.replay import ReplayConfig


def test_the_next_use_is_the_first_by_a_request_that_has_not_passed() -> None:
    foresight = Foresight()
    for request_id, text in enumerate(["ab", "ac", "ab"]):
        foresight.expect(request_id, text)
    assert [foresight.next_use(key) for key in "abcd"] == [0, 1, 3, None]
    foresight.pass_by(1)  # admitted out of turn
    assert [foresight.next_use(key) for key in "abcd"] == [0, 1, None, None]
    foresight.pass_by(0)
    assert [foresight.next_use(key) for key in "abcd"] == [4, 5, None, None]


def test_a_trace_foretells_the_blocks_that_its_prompts_look_up() -> None:
    """Blocks of 4 tokens: a prompt of 8 looks up one block, since its last token is computed whatever is cached."""
    trace = trace_of([0, 0], [8, 9], [1, 1], hash_ids=[[1, 2], [1, 2, 3]], hash_block_tokens=4)
    foresight = foresight_of(trace, ReplayConfig(4), num_groups=2)
    assert [foresight.next_use(key) for key in (1, (1, 1), 2, (1, 2), 3)] == [0, 1, 4, 5, None]


def test_without_a_trace_there_is_no_future() -> None:
    with pytest.raises(InputError, match=r"^eviction: Belady must know the requests to come; expected a replay"):
        Belady(PolicyEnv(now=lambda: 0, num_blocks=8, block_size_tokens=4))


def simulated(**choices: Any) -> dict[str, Any]:
    pool = {"num_blocks": choices.pop("num_blocks", 700)}
    return kvtwin.simulate("agent_sessions_sample", pool=pool, **choices).summary


def test_belady_hits_more_than_lru_and_decides_alike_in_spans_and_steps() -> None:
    options = {"overrides": ["trace.arrivals=sequential", "trace.limit=60"]}
    lru, belady = (simulated(eviction=name, **options) for name in ("lru", "belady"))
    steps = simulated(eviction="belady", overrides=[*options["overrides"], "fast_forward=false"])
    assert belady["metrics"]["prefix_hit_tokens"] > lru["metrics"]["prefix_hit_tokens"]
    assert belady["decisions"] == steps["decisions"]


def test_a_request_that_ended_before_it_began_is_no_future() -> None:
    scheduler = scheduler_of(Settings(8, block_size=4))
    scheduler.foresight = Foresight()
    scheduler.foresight.expect(0, "a")
    scheduler.foresight.expect(1, "a")
    assert scheduler.foresight.next_use("a") == 0
    scheduler.add(Request(0, 0, 4_000, 1, PrivateKeys(0)), 0)  # too long: rejected at once
    assert scheduler.foresight.next_use("a") == 1


@pytest.fixture
def command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kvtwin:
    return in_folder(tmp_path, monkeypatch, capsys)


SMALL = ("trace=agent_sessions_sample", "trace.limit=5", "pool.num_blocks=700")


def test_a_sweep_over_all_policies_refuses_those_that_it_did_not_name(command: Kvtwin) -> None:
    finished = command("sim", "-m", *SMALL, "eviction=glob(b*)")
    assert finished.status == 2
    assert any(
        "eviction=belady: it knows the future" in line and "expected eviction=glob(*,exclude=belady)" in line
        for line in finished.errors
    )
    named = command("sim", "-m", *SMALL, "eviction=lru,belady")
    assert named.status == 0
    assert "belady" in named.out
